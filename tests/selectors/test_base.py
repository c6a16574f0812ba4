import dataclasses

import numpy as np
import pytest

from fedfacet import rng
from fedfacet.selectors.base import Taxonomy, drawn_order, lowest, numbers
from fedfacet.selectors.uniform import UniformSelector

FIELDS = {
    "policy": "efficiency",
    "client_characteristics": "DRT",
    "shared_information": ("θ", "|D|", "loss"),
    "value_generation": "loss",
    "value_interpretation": "ranking",
    "termination_condition": "accuracy reached",
}


def test_a_taxonomy_is_six_fields_that_stay():
    taxonomy = Taxonomy(**FIELDS)
    assert dataclasses.asdict(taxonomy) == FIELDS
    with pytest.raises(dataclasses.FrozenInstanceError):
        taxonomy.policy = "fairness"


def test_uniform_selection_is_eqrep_of_the_thesis_table_4():
    """Selection fairness, V and neither D nor S, R, T; the weights alone are shared; a probability."""
    assert dataclasses.astuple(UniformSelector.taxonomy) == ("selection fairness", "VRT", ("θ",), "-", "probability", "-")


@pytest.mark.parametrize("name", list(FIELDS))
def test_no_field_is_empty(name):
    with pytest.raises(ValueError, match=f"`{name}` is empty"):
        Taxonomy(**FIELDS | {name: type(FIELDS[name])()})


@pytest.mark.parametrize("letters", ["DV", "DD", "X", "vd", "D R", "V-"])
def test_characteristics_are_letters_in_order(letters):
    with pytest.raises(ValueError, match=f"letters of VDSRT.*{letters!r}"):
        Taxonomy(**FIELDS | {"client_characteristics": letters})
    assert Taxonomy(**FIELDS | {"client_characteristics": "-"}).client_characteristics == "-"


@pytest.mark.parametrize("group", range(4))
def test_who_has_more_of_a_group_and_takes_part_more_often_makes_it_less_rare(group):
    """The thesis, section 6.4: at equal weights, of a client with more of a group than everybody has."""
    counts_KG = rng.stream(0, "counts").integers(1, 60, size=(8, 4))
    shares_K = counts_KG[:, group] / counts_KG.sum(axis=1)
    richest = int(shares_K.argmax())
    assert shares_K[richest] > counts_KG[:, group].sum() / counts_KG.sum()
    expected = []
    for factor in (1.0, 4.0):
        weights = np.where(np.arange(8) == richest, factor, 1.0)
        chosen = [drawn_order(weights, rng.stream(0, "selection", draw))[:3] for draw in range(1000)]
        drawn = sum(counts_KG[cohort].sum(axis=0) for cohort in chosen)
        expected.append(drawn[group] / drawn.sum())
    assert expected[1] > expected[0] + 0.01


@pytest.mark.parametrize("number", [0, 1, 4, 9, 10, 12])
def test_the_lowest_are_the_first_of_all_in_order(number):
    draw = np.random.default_rng(0)
    for _ in range(50):
        luck, key = draw.random(10), draw.choice([0.0, 1.0, 2.0, np.inf, np.nan], size=10)
        assert lowest(number, luck, key).tolist() == np.lexsort((luck, key))[:number].tolist()


def test_the_first_who_are_drawn_are_the_first_of_all_who_are():
    weights = np.array([0.0, 3.0, 1.0, 0.0, 2.0, 1.0])
    every = drawn_order(weights, np.random.default_rng(4))
    assert drawn_order(weights, np.random.default_rng(4), 4).tolist() == every[:4].tolist()


def test_clients_are_an_array_whatever_holds_them():
    assert numbers(range(2, 9, 3)).tolist() == numbers((2, 5, 8)).tolist() == [2, 5, 8]
    assert numbers(()).dtype == numbers(range(0)).dtype == np.int64
