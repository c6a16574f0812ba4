"""Answers come back from their columns as they were, type by type; hostile columns are refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.storage.tensors import pack, unpack

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=2))
DATA = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=8)


def as_text(value):
    """Tell 1, 1.0 and True apart, and a list from a tuple."""
    return repr(value)


@given(st.dictionaries(st.integers(0, 20), DATA, max_size=5))
def test_any_answers_come_back(answers):
    assert as_text(unpack(pack(answers))) == as_text(answers)


@given(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=6), st.data())
def test_answers_of_one_form_become_columns_and_come_back(clients, data):
    kind, rows, width = data.draw(st.sampled_from([list, tuple])), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    numbers = data.draw(st.sampled_from([st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1)]))
    row = st.lists(numbers, min_size=width, max_size=width)
    answers = {k: kind(data.draw(st.lists(row, min_size=rows, max_size=rows))) for k in clients}
    packed = pack(answers)
    assert packed["entries"].shape == (len(clients) * rows * width,)
    assert as_text(unpack(packed)) == as_text(answers)


def test_not_a_number_comes_back():
    assert math.isnan(unpack(pack({3: [float("nan"), float("inf")]}))[3][0])


def test_what_has_no_columns_stays_as_it_is():
    itself: list = []
    itself.append(itself)
    for answers in ({}, {0: 2**63}, {0: 1, 1: 1.0}, {0: [1.0], 1: [1.0, 2.0]}, {0: [1.0], 1: (1.0,)}, {0: []}, {0: itself}):
        assert pack(answers) is answers


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [0, 1]},
        {"clients": torch.tensor([0.0, 1.0])},
        {"clients": torch.tensor([[0, 1]])},
        {"entries": torch.zeros(3)},
        {"entries": torch.zeros(3, dtype=torch.float64)},
        {"levels": [("list", 3)]},
        {"levels": [("list", 0)]},
        {"levels": [("list", -2)]},
        {"levels": [("list", True)]},
        {"levels": [("eval", 2)]},
        {"levels": [(["list"], 2)]},
        {"levels": ["ab"]},
        {"levels": "ab"},
    ],
)
def test_columns_of_another_form_are_refused(change):
    with pytest.raises(ValueError, match="not what a run saves"):
        unpack({**pack({0: [0.5, 1.0], 7: [0.0, 2.0]}), **change})
