"""Every query declares what its answer must be like; what differs from that is told, whatever it is."""

import math

import numpy as np
import pytest
import torch

from fedfacet.answer_form import ANYTHING, AnswerForm, is_count, plain
from fedfacet.deploy.questions import known_queries

SIZES = {"Y": 3, "A": 2, "S": 5}


def filled(shape, value):
    """Return nested lists of a shape."""
    if not shape:
        return value
    return [filled(shape[1:], value) for _ in range(shape[0])]


def shape_of(form):
    """Return a shape that fits."""
    wanted = (SIZES.get(size, size) for size in form.shape)
    return tuple(2 if isinstance(size, range) or size is None else size for size in wanted)


@pytest.fixture(params=known_queries())
def form(request):
    """What the answer to a query of the project must be like."""
    return known_queries()[request.param]().form


def test_every_query_declares_its_answer(form):
    assert form is not ANYTHING
    assert form.shape is not None


def test_what_is_no_answer_of_that_form_is_told(form):
    shape = shape_of(form)
    deep = [1.0]
    for _ in range(5000):
        deep = [deep]
    leaves = [None, "1", "x", True, {}, {"a": [{}]}, 1j, 10**400, -(10**400), 1e305, -math.inf, [], object()]
    bad = [filled(shape, value) for value in leaves]
    bad += [None, "many", True, {}, {"value": 1.0}, deep, [[1.0], [2.0, 3.0]], [filled(shape, 1.0)], filled((*shape, 2), 1.0)]
    if form.low == 0:
        bad += [filled(shape, -1.0), filled(shape, -1)]
    if shape:
        bad += [1.0, filled((shape[0] + 7, *shape[1:]), 1.0)]
        bad += [[*filled(shape, 1.0)[:-1], last] for last in (None, "x", [[]], {})]
    if form.finite:
        bad += [filled(shape, math.nan), filled(shape, math.inf)]
    if form.counts is not None:
        bad += [filled(shape, value) for value in (0.5, 2**31, 2**53, 3e38)]
    for value in bad:
        fault = form.misfit(value, SIZES)
        assert isinstance(fault, str), value
        assert len(fault) < 400


COUNTING = {name: query().form for name, query in known_queries().items() if query().form.counts is not None}


@pytest.mark.parametrize("form", COUNTING.values(), ids=COUNTING)
def test_counts_are_held_to_the_clients_number_of_samples(form):
    value = np.zeros(shape_of(form))
    value[form.counts] = 1
    most = int(value[form.counts].sum())
    assert form.misfit(value.tolist(), SIZES, most) is None
    assert "samples are counted instead of" in form.misfit(value.tolist(), SIZES, most - 1)


def test_more_hits_than_samples_are_told():
    form = AnswerForm(shape=(2, 2), low=0, counts=1, parts=True)
    assert form.misfit([[1, 0], [1, 3]], {}) is None
    assert "more is told of a group than it has samples" in form.misfit([[1, 4], [1, 3]], {})


def test_a_query_that_declares_nothing_may_answer_numbers_of_any_shape():
    for value in (1, -math.inf, math.nan, [1, 2.0], [[]], [[[3.0]]], np.float32(2), np.int64(1)):
        assert ANYTHING.misfit(value, SIZES) is None
    for value in (None, "x", [None], [[1], 2], {}, 10**400):
        assert ANYTHING.misfit(value, SIZES) is not None


def test_arrays_become_lists():
    assert [plain(one) for one in (np.ones(2), np.float64(3), torch.ones(1, 1), [4], None)] == [[1, 1], 3, [[1]], [4], None]


@pytest.mark.parametrize("value", [None, -1, 1.0, "1", True, 10**30, math.nan])
def test_what_an_answer_costs_is_a_whole_number(value):
    assert not is_count(value)
    assert is_count(2**53)
