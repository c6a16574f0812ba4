"""ACS Employment, on generated files in folktables' layout: no real ones are at hand."""

import csv
import shutil

import numpy as np
import pytest

from fedfacet.data.acs_employment import CODES, STATES, ACSEmployment
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("acs")
    ACSEmployment(root=str(root)).generate(None)
    return root


@pytest.fixture
def changed(generated, tmp_path):
    """Write California's table alone, with something done to its rows, the header the first of them."""

    def change(do, **settings):
        name = "2018/1-Year/psam_p06.csv"
        with (generated / name).open(newline="") as file:
            rows = list(csv.reader(file))
        do(rows)
        (tmp_path / name).parent.mkdir(parents=True)
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return ACSEmployment(root=str(tmp_path), **settings)

    return change


def test_rows_classes_sexes_and_states_come_from_the_files(generated):
    """By the csv module alone; of each state's 112 rows the last four are not of 17 to 89, or weigh nothing."""
    dataset = ACSEmployment(root=str(generated)).load()
    y, a, states = [], [], []
    for state in ("CA", "NY", "TX"):
        with (generated / f"2018/1-Year/psam_p{STATES[state]:02d}.csv").open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if 16 < int(row["AGEP"]) < 90 and int(row["PWGTP"]) >= 1]
        assert len(kept) == 108
        y += [int(row["ESR"] == "1") for row in kept]
        a += [int(row["SEX"] == "1") for row in kept]
        states += [STATES[state]] * len(kept)
    assert (dataset.y.tolist(), dataset.a.tolist(), dataset.columns["state"].tolist()) == (y, a, states)
    assert len(dataset.test) == 4 * round(0.2 * len(y) / 4)


def test_features(generated):
    """Age, and a one for each category that was asked; nobody here was asked about parents' work."""
    dataset = ACSEmployment(root=str(generated)).load()
    inputs = dataset.inputs.fetch(np.arange(len(dataset.y))).numpy()
    assert dataset.input_shape == (1 + sum(map(len, CODES.values())),)
    assert inputs[dataset.train, 0].mean() == pytest.approx(0, abs=1e-5)
    assert inputs[dataset.train, 0].std() == pytest.approx(1, abs=1e-5)
    for (name, codes), start in zip(CODES.items(), np.cumsum([1, *map(len, CODES.values())]), strict=False):
        assert (inputs[:, start : start + len(codes)].sum(axis=1) == (name != "ESP")).all()
    dropped = ACSEmployment(root=str(generated), sensitive_features="drop").load()
    assert np.array_equal(dropped.inputs.fetch(dataset.train), inputs[dataset.train][:, :-11])


def test_a_category_is_where_its_code_says(changed):
    def spoil(rows):
        rows[1][rows[0].index("RELP")] = "00"
        rows[2][rows[0].index("RELP")] = "17"
        rows[3][rows[0].index("RELP")] = ""

    inputs = changed(spoil).load().inputs.fetch(np.arange(3)).numpy()
    relationship = inputs[:, 1 + 24 + 5 :][:, :18]
    assert [np.flatnonzero(row).tolist() for row in relationship] == [[0], [17], []]


@pytest.mark.parametrize(("attribute", "values"), [("sex", 2), ("race", 9)])
def test_attributes(generated, attribute, values):
    dataset = ACSEmployment(root=str(generated), attribute=attribute).load()
    assert dataset.num_attributes == values == len(set(dataset.a))


def test_relationships_have_another_name_from_2019_on(tmp_path):
    source = ACSEmployment(root=str(tmp_path), year=2021, states=["VT"])
    source.generate(None)
    header = (tmp_path / "2021/1-Year/psam_p50.csv").read_text().splitlines()[0].split(",")
    assert "RELSHIPP" in header
    assert "RELP" not in header
    assert source.load().input_shape == (1 + sum(map(len, CODES.values())) + 1,)


def test_states_are_chosen(generated):
    dataset = ACSEmployment(root=str(generated), states=["TX", "CA"]).load()
    assert set(dataset.columns["state"].tolist()) == {6, 48}
    with pytest.raises(DatasetNotFoundError, match=r"Expected psam_p50\.csv in .*2018/1-Year.*csv_pvt\.zip.*holds folktables/"):
        ACSEmployment(root=str(generated), states=["CA", "VT"]).load()


def test_a_folder_without_files_is_named(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=rf"of any state in {tmp_path}/2018/1-Year, but"):
        ACSEmployment(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("AGEP", "100", "`AGEP` to be a whole number from 0 to 99 in every"),
        ("ESR", "7", "`ESR` to be a whole number from 1 to 6, or blank in every"),
        ("SEX", "", "`SEX` to be a whole number from 1 to 2 in every"),
        ("RAC1P", "nan", "`RAC1P` to be a whole number from 1 to 9 in every"),
    ],
)
def test_a_wrong_entry_is_named(changed, column, value, sentence):
    def spoil(rows):
        rows[4][rows[0].index(column)] = value

    with pytest.raises(
        DatasetCorruptError, match=rf"{sentence} line of \S+psam_p06\.csv, but got '{value}' in line 5: restore"
    ):
        changed(spoil).load()


def test_a_missing_column_is_named(changed):
    def spoil(rows):
        rows[0][rows[0].index("RELP")] = "RELSHIPP"

    with pytest.raises(DatasetCorruptError, match=r"a column `RELP` in line 1 of \S+psam_p06\.csv"):
        changed(spoil).load()


def test_groups_of_nobody_are_refused(changed):
    def spoil(rows):
        rows[:] = [rows[0], *(row for row in rows[1:] if row[rows[0].index("RAC1P")] != "4")]

    with pytest.raises(
        DatasetCorruptError, match=r"two or more people of every class and race in .*take more `dataset\.states`"
    ):
        changed(spoil, attribute="race").load()


@pytest.mark.parametrize(
    "settings",
    [
        *({"states": states} for states in ([], ["CA", "CA"], ["ca"], ["XX"])),
        *({"year": 2016}, {"attribute": "age"}, {"sensitive_features": "all"}),
    ],
)
def test_other_settings_are_refused(settings):
    with pytest.raises(ValueError, match=rf"^Expected `dataset\.{next(iter(settings))}` to be "):
        ACSEmployment(root="anywhere", **settings)


def test_files_of_other_names_are_left_alone(generated, tmp_path):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "2018/1-Year/psam_pusa.csv").write_text("the whole country")
    assert len(ACSEmployment(root=str(tmp_path)).load().y) == 3 * 108
