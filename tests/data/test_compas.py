"""ProPublica's COMPAS table, on the real one where it is at hand and on generated ones of the same layout."""

import csv
import pickle
import traceback

import numpy as np
import pytest

from fedfacet.data.compas import FILE, Compas
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def real(real_folder):
    return real_folder("compas")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("compas")
    Compas(root=str(root)).generate(None)
    return root


@pytest.fixture
def changed(generated, tmp_path):
    """Write the generated table with something done to its rows, the header the first of them; return the source."""

    def change(do):
        with (generated / FILE).open(newline="") as file:
            rows = list(csv.reader(file))
        do(rows)
        with (tmp_path / FILE).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return Compas(root=str(tmp_path), verify_counts=False)

    return change


def counts(dataset, split):
    cells = dataset.y[split] * dataset.num_attributes + dataset.a[split]
    return np.bincount(cells, minlength=2 * dataset.num_attributes).reshape(2, -1).tolist()


@pytest.mark.parametrize(
    ("attribute", "names", "train", "size"),
    [
        ("race", ("Caucasian", "African-American"), [[1025, 1211], [658, 1329]], 5278),
        ("sex", ("Female", "Male"), [[610, 2081], [330, 1917]], 6172),
        (
            "race_all",
            ("Caucasian", "African-American", "Hispanic", "Other", "Asian", "Native American"),
            [[1025, 1211, 256, 175, 18, 5], [658, 1329, 151, 99, 6, 4]],
            6172,
        ),
    ],
)
def test_the_published_counts(real, attribute, names, train, size):
    dataset = Compas(root=real, attribute=attribute).load()
    assert len(dataset.y) == len(dataset.train) + len(dataset.test) == size
    assert dataset.attribute_names == names
    assert counts(dataset, dataset.train) == train


def test_six_features_and_none_that_tells_the_answer(real):
    dataset = Compas(root=real).load()
    inputs = dataset.inputs.fetch(dataset.train).numpy()
    assert inputs.shape[1:] == dataset.input_shape == (6,)
    assert inputs[:, :5].mean(axis=0) == pytest.approx(0, abs=1e-5)
    assert inputs[:, :5].std(axis=0) == pytest.approx(1, abs=1e-4)
    assert set(np.unique(inputs[:, 5])) == {0, 1}
    # A feature that leaks y tells it nearly always: is_recid does for 97 in 100 people.
    for feature in inputs.T:
        assert abs(np.corrcoef(feature, dataset.y[dataset.train])[0, 1]) < 0.4


def test_the_test_set_is_drawn_by_the_seed(generated):
    one, same, other = (Compas(root=str(generated), verify_counts=False, seed=seed).load() for seed in (0, 0, 1))
    assert np.array_equal(one.test, same.test)
    assert not np.array_equal(one.test, other.test)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("days_b_screening_arrest", value) for value in ("31", "-31", "")),
        *(("is_recid", "-1"), ("c_charge_degree", "O"), ("score_text", "N/A")),
    ],
)
def test_the_filter_is_propublicas(generated, changed, column, value):
    """One of the rows that are kept gets a value that is not."""
    kept = len(Compas(root=str(generated), verify_counts=False).load().y)

    def spoil(rows):
        at = rows[0].index("race")
        row = next(row for row in rows[1:] if row[at] == "Caucasian" and row[rows[0].index("days_b_screening_arrest")] == "0")
        row[rows[0].index(column)] = value

    assert len(changed(spoil).load().y) == kept - 1


@pytest.mark.parametrize("value", ["30", "-30"])
def test_thirty_days_are_kept(generated, changed, value):
    def spoil(rows):
        row = next(row for row in rows[1:] if "Caucasian" in row and row[rows[0].index("days_b_screening_arrest")] == "0")
        row[rows[0].index("days_b_screening_arrest")] = value

    assert len(changed(spoil).load().y) == len(Compas(root=str(generated), verify_counts=False).load().y)


def test_a_table_without_personal_columns_gives_the_same(generated, changed):
    def cut(rows):
        rows[:] = [row[4:] for row in rows]

    whole, bare = Compas(root=str(generated), verify_counts=False).load(), changed(cut).load()
    assert np.array_equal(whole.inputs.fetch(whole.train), bare.inputs.fetch(bare.train))


def test_nothing_personal_is_kept(generated):
    """What is not in the data set cannot get into a log or a run folder."""
    assert b"generated, person 7" in (generated / FILE).read_bytes()
    kept = pickle.dumps(Compas(root=str(generated), verify_counts=False).load())
    assert not [personal for personal in (b"person", b"generated", b"1900") if personal in kept.replace(b"fedfacet", b"")]


PERSON = ["SECRETNAME, the elder", "SECRETFIRST", "SECRETLAST", "1961-11-23"]
FAULTS = {
    "a comma too many": lambda row: row.insert(0, "SECRETNAME"),
    "shifted by one, as long as before": lambda row: (row.insert(4, "SECRETLAST"), row.pop()),
    "shifted the other way": lambda row: (row.pop(0), row.append("0")),
    "a name for a number": lambda row: row.__setitem__(4, "SECRETNAME"),
    "a name for the answer": lambda row: row.__setitem__(-1, "SECRETNAME"),
    "a birthday for days": lambda row: row.__setitem__(12, "1961-11-23"),
    "the line ends early": lambda row: row.__delitem__(slice(3, None)),
    "an unclosed quote": None,
    "no text": None,
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_no_error_tells_who_somebody_is(changed, fault, caplog, capfd):
    """Neither the sentence nor the errors behind it: a traceback prints those too."""

    def spoil(rows):
        rows[7][:4] = PERSON
        if FAULTS[fault]:
            FAULTS[fault](rows[7])

    source = changed(spoil)
    if FAULTS[fault] is None:
        broken = {"an unclosed quote": b'\n"SECRETNAME, SECRETFIRST', "no text": b"\nSECRETNAME\xff,SECRETFIRST"}[fault]
        source.file.write_bytes(source.file.read_bytes() + broken)
    with pytest.raises(DatasetCorruptError, match=r"^Expected [^\n]+compas-scores-two-years\.csv") as caught:
        source.load()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text + "".join(capfd.readouterr())
    source_lines = [line for line in told.splitlines() if "source.load()" not in line]
    for personal in ("SECRET", "1961", "elder"):
        assert personal not in "\n".join(source_lines)


def test_a_table_without_the_answer_is_refused(changed):
    def spoil(rows):
        rows[0][-1] = "another"

    with pytest.raises(DatasetCorruptError, match=r"a column `two_year_recid` in line 1 of \S+, which names the columns"):
        changed(spoil).load()


def test_other_counts_are_refused(generated):
    with pytest.raises(DatasetCorruptError, match=r"published table with \[\[1281, 1514.*dataset\.verify_counts=false"):
        Compas(root=str(generated)).load()


def test_a_group_of_one_is_refused(changed):
    def spoil(rows):
        rows[:] = [rows[0], *(row for row in rows[1:] if "Caucasian" in row)]

    with pytest.raises(DatasetCorruptError, match=r"two or more rows of every class and race in \S+"):
        changed(spoil).load()


def test_a_missing_table_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=rf"at {tmp_path / FILE}.*raw\.githubusercontent\.com.*holds compas/"):
        Compas(root=str(tmp_path)).load()


def test_another_attribute_is_refused():
    with pytest.raises(ValueError, match=r"^Expected `dataset\.attribute` to be 'race', 'race_all' or 'sex', but got 'age'"):
        Compas(root="anywhere", attribute="age")


def test_generated_files_meet_the_demand(tmp_path):
    demand = np.array([[200, 10], [10, 200]])
    source = Compas(root=str(tmp_path), verify_counts=False)
    source.generate(demand)
    dataset = source.load(demand)
    assert (np.array(counts(dataset, dataset.train)) > demand).all()
