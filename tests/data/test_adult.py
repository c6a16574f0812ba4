"""UCI Adult, on the real files where they are at hand and on generated ones of the same layout."""

import shutil

import numpy as np
import pytest

from fedfacet.data.adult import CATEGORIES, NUMBERS, PUBLISHED, Adult
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, "
    "<=50K"
)
"""The first of the real ones."""


@pytest.fixture(scope="module")
def real(real_folder):
    return real_folder("adult")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("adult")
    Adult(root=str(root)).generate(None)
    return root


def counts(dataset, split):
    cells = dataset.y[split] * dataset.num_attributes + dataset.a[split]
    return np.bincount(cells, minlength=2 * dataset.num_attributes).reshape(2, -1).tolist()


def test_the_published_counts(real):
    dataset = Adult(root=real).load()
    assert counts(dataset, dataset.train) == [[9592, 15128], [1179, 6662]]
    assert counts(dataset, dataset.test) == [[4831, 7604], [590, 3256]]
    assert dataset.attribute_names == ("Female", "Male")
    values = {name: np.unique(column[dataset.train]) for name, column in dataset.columns.items()}
    assert {name: len(of) for name, of in values.items()} == {
        "sex": 2, "race": 5, "education": 16, "occupation": 15, "workclass": 9, "doctorate": 2
    }  # fmt: skip
    assert np.bincount(dataset.columns["doctorate"][dataset.train]).tolist() == [32_148, 413]
    assert np.bincount(dataset.columns["race"][dataset.train]).tolist() == [311, 1039, 3124, 271, 27_816]


def test_rows_with_an_unknown_category_are_dropped(real):
    dataset = Adult(root=real, missing="drop").load()
    assert (len(dataset.train), len(dataset.test)) == (32_561 - 2399, 16_281 - 1221)
    assert len(np.unique(dataset.columns["occupation"])) == 14


def test_the_first_row_as_a_vector(real):
    """By hand, with the training rows' published mean age of 38.58 and deviation of 13.64."""
    dataset = Adult(root=real, sensitive_features="keep").load()
    row = dataset.inputs.fetch(np.arange(1))[0].numpy()
    assert row[0] == pytest.approx((39 - 38.58) / 13.64, abs=1e-3)
    names = [(column, category) for column, categories in CATEGORIES.items() for category in categories]
    ones = {names[place] for place in np.flatnonzero(row[len(NUMBERS) :])}
    assert ones == {
        *(("workclass", "State-gov"), ("education", "Bachelors"), ("marital-status", "Never-married"), ("sex", "Male")),
        *(("occupation", "Adm-clerical"), ("relationship", "Not-in-family"), ("race", "White")),
        ("native-country", "United-States"),
    }


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ({}, 97),
        ({"sensitive_features": "keep"}, 104),
        ({"features": "categorical"}, 92),
        ({"features": "categorical", "sensitive_features": "keep"}, 99),
    ],
)
def test_the_features_that_are_chosen(generated, settings, width):
    dataset = Adult(root=str(generated), verify_counts=False, **settings).load()
    assert dataset.input_shape == (width,)
    inputs = dataset.inputs.fetch(dataset.train).numpy()
    numbers = 5 if settings.get("features") != "categorical" else 0
    assert np.isin(inputs[:, numbers:], (0, 1)).all()
    # The test's rows are not among those that the constants are of; capital gains and losses are constant here.
    assert np.abs(inputs[:, :numbers].mean(axis=0)).max(initial=0) < 1e-5
    assert set(np.round(inputs[:, :numbers].std(axis=0), 5)) <= {0, 1}


def test_dropped_sensitive_features_do_not_reach_a_model(generated, tmp_path):
    """Everybody's sex and race changed: the inputs stay the same."""
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    for name in PUBLISHED:
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(", Male", ", Female").replace(", Black", ", White"))
    kept, changed = (Adult(root=str(root), verify_counts=False).load() for root in (generated, tmp_path))
    assert set(changed.a) == {0}
    assert set(kept.a) == {0, 1}
    everyone = np.arange(len(kept.y))
    assert np.array_equal(kept.inputs.fetch(everyone), changed.inputs.fetch(everyone))


@pytest.mark.parametrize(("attribute", "values"), [("sex", 2), ("race", 5), ("sex_race", 10)])
def test_attributes(generated, attribute, values):
    dataset = Adult(root=str(generated), attribute=attribute, verify_counts=False).load()
    assert dataset.num_attributes == values == len(set(dataset.attribute_names))
    assert np.min(counts(dataset, dataset.test)) == 10 * 10 // values
    sex, race = (dataset.columns[name] for name in ("sex", "race"))
    assert np.array_equal(dataset.a, {"sex": sex, "race": race, "sex_race": 5 * sex + race}[attribute])
    if attribute == "sex_race":
        assert dataset.attribute_names[7] == "Male Black"


def test_the_doctorate_as_attribute(generated):
    dataset = Adult(root=str(generated), attribute="doctorate", verify_counts=False).load()
    assert np.array_equal(dataset.a, dataset.columns["doctorate"])
    assert dataset.attribute_names == ("No doctorate", "Doctorate")


def test_an_unknown_category_is_a_client_of_its_own_and_no_input(generated):
    dataset = Adult(root=str(generated), verify_counts=False).load()
    unknown = dataset.columns["workclass"] == 8
    assert 0 < unknown.mean() < 0.5
    workclass = dataset.inputs.fetch(np.arange(len(dataset.y))).numpy()[:, 5:13]
    assert np.array_equal(workclass.sum(axis=1) == 0, unknown)


def test_other_counts_are_refused(generated):
    with pytest.raises(
        DatasetCorruptError, match=r"published adult\.data with \[\[9592, 15128\].*dataset\.verify_counts=false"
    ):
        Adult(root=str(generated)).load()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (ROW.replace("39", "old"), r"`age` to be a whole number from 0 to 150 .*adult\.data, but got 'old' in line 2"),
        (ROW.replace("White", "Green"), "`race` to be one of 'Amer-Indian-Eskimo', .* but got 'Green' in line 2"),
        (ROW.replace("Bachelors", "?"), r"`education` to be one of .* or another of 16 .* but got '\?' in line 2"),
        (ROW + ".", r"`income` to be one of '<=50K', '>50K' in every line of \S+ but got '<=50K\.' in line 2"),
        (ROW[:40], "15 entries in every line .* but got 6 in line 2"),
        (ROW.replace("Male", '"Male'), r"what follows line 1 cannot be read \(unexpected end of data\)"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named(generated, tmp_path, row, sentence):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adult.data").write_text(f"{ROW}\n{row}\n")
    with pytest.raises(DatasetCorruptError, match=rf"^Expected .*{sentence}.*restore adult\.data from https://archive.*\.$"):
        Adult(root=str(tmp_path), verify_counts=False).load()


def test_a_missing_file_is_named_with_a_remedy(generated, tmp_path):
    shutil.copy(generated / "adult.data", tmp_path)
    with pytest.raises(DatasetNotFoundError, match=rf"Adult's adult\.test in {tmp_path}.*dataset\.download=true"):
        Adult(root=str(tmp_path), verify_counts=False).load()


def test_missing_files_are_fetched(generated, tmp_path):
    dataset = Adult(root=str(tmp_path / "new"), download=True, url=generated.as_uri(), verify_counts=False).load()
    assert {path.name for path in (tmp_path / "new").iterdir()} >= set(PUBLISHED)
    assert len(dataset.y) == len(Adult(root=str(generated), verify_counts=False).load().y)


@pytest.mark.parametrize(
    "settings",
    [{"attribute": "age"}, {"features": "some"}, {"sensitive_features": True}, {"missing": "keep"}],
)
def test_other_settings_are_refused(settings):
    with pytest.raises(ValueError, match=rf"^Expected `dataset\.{next(iter(settings))}` to be '"):
        Adult(root="anywhere", **settings)


def test_generated_files_meet_the_demand(tmp_path):
    demand = np.array([[300, 10], [10, 300]])
    source = Adult(root=str(tmp_path), verify_counts=False)
    source.generate(demand)
    dataset = source.load(demand)
    assert (np.array(counts(dataset, dataset.train)) > demand).all()
