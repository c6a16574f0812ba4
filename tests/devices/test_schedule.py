"""Seconds of a round, by hand and by the formulas of others."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.devices.base import Calendar
from fedfacet.devices.schedule import Load, Work, arrivals_of, schedule


def load(download, compute, upload, lost=None, ids=None):
    parts = [np.array(part, dtype=np.float64) for part in (download, compute, upload)]
    gone = np.array(lost if lost is not None else [math.inf] * len(download), dtype=np.float64)
    return Load(np.array(ids if ids is not None else range(len(download))), *parts, gone)


FEDCS = load([1, 2, 4], [1, 6, 4], [2, 2, 3])
"""Client 1 is ready last."""


def test_fedcs_by_hand():
    """Two clients: 2 + (0 + 2 + 1) = 5 and 2 + (3 + 2 + 3) = 10 seconds, in whichever order they are named."""
    two = load([1, 2], [1, 6], [2, 2])
    assert arrivals_of(two, "sequential").tolist() == [5, 10]
    assert arrivals_of(load([2, 1], [6, 1], [2, 2]), "sequential").tolist() == [10, 5]
    # Ready at 1, 4, 6: the channel is busy until 3, 7 and 9, after 4 seconds of download.
    assert arrivals_of(FEDCS, "sequential").tolist() == [7, 13, 11]
    assert arrivals_of(FEDCS, "parallel").tolist() == [4, 10, 11]


def fedcs_in_order(loads, order):
    """Equations 3 and 4 of FedCS, for clients that send in that order."""
    theta = 0.0
    for k in order:
        theta += loads.upload[k] + max(0.0, loads.compute[k] - theta)
    return float(loads.download.max()) + theta


def test_no_order_is_faster_and_the_printed_one_takes_fifteen_seconds():
    assert fedcs_in_order(FEDCS, [0, 1, 2]) == 15
    assert fedcs_in_order(FEDCS, [0, 1]) - FEDCS.download.max() + 2 == 10
    orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    assert min(fedcs_in_order(FEDCS, order) for order in orders) == arrivals_of(FEDCS, "sequential").max() == 13


@pytest.mark.parametrize(
    ("deadline", "wanted", "seconds", "counted", "slowest"),
    [
        (None, None, 11, [True, True, True], 2),
        (10, None, 10, [True, True, False], 1),
        (5, None, 5, [True, False, False], 0),
        (3, None, 3, [False, False, False], None),
        (None, 2, 10, [True, True, False], 1),
        (5, 2, 5, [True, False, False], 0),
        (20, 3, 11, [True, True, True], 2),
    ],
)
def test_the_server_waits_by_hand(deadline, wanted, seconds, counted, slowest):
    made = schedule(FEDCS, uplink="parallel", deadline=deadline, wanted=wanted)
    assert made.seconds == seconds
    assert made.counted.tolist() == counted
    assert made.slowest == slowest


def test_who_is_lost_does_not_arrive_and_is_not_waited_for_any_longer():
    made = schedule(load([1, 1], [5, 9], [1, 1], lost=[math.inf, 8]), uplink="parallel", deadline=None, wanted=None)
    assert made.counted.tolist() == [True, False]
    assert made.seconds == 8
    assert made.stopped.tolist() == [7, 8]
    sequential = schedule(load([1, 1], [5, 4], [1, 9], lost=[math.inf, 4]), uplink="sequential", deadline=None, wanted=None)
    assert sequential.arrivals.tolist() == [7, math.inf]


def test_nobody_takes_no_time():
    made = schedule(load([], [], []), uplink="sequential", deadline=9, wanted=2)
    assert (made.seconds, made.slowest, made.counted.tolist()) == (0, None, [])


seconds = st.floats(0.001, 100)
loads = st.lists(st.tuples(seconds, seconds, seconds, st.one_of(st.just(math.inf), seconds)), min_size=1, max_size=8).map(
    lambda rows: load(*zip(*rows, strict=True))
)


@given(loads=loads, deadline=st.floats(0.1, 200), more=st.floats(0, 100), uplink=st.sampled_from(["parallel", "sequential"]))
def test_a_later_deadline_never_has_fewer_arrivals(loads, deadline, more, uplink):
    early, late = (schedule(loads, uplink=uplink, deadline=at, wanted=None).counted for at in (deadline, deadline + more))
    assert not (early & ~late).any()


@given(loads=loads)
def test_a_shared_channel_is_never_faster(loads):
    assert (arrivals_of(loads, "sequential") >= arrivals_of(loads, "parallel") * (1 - 1e-12)).all()


@given(loads=loads, seed=st.integers(0, 99), uplink=st.sampled_from(["parallel", "sequential"]), wanted=st.integers(1, 4))
def test_the_order_of_a_cohort_does_not_matter(loads, seed, uplink, wanted):
    order = np.random.default_rng(seed).permutation(len(loads.client_ids))
    other = Load(*(getattr(loads, name)[order] for name in ("client_ids", "download", "compute", "upload", "lost")))
    one, two = (schedule(part, uplink=uplink, deadline=60, wanted=wanted) for part in (loads, other))
    assert one.seconds == two.seconds
    assert one.counted[order].tolist() == two.counted.tolist()
    assert one.stopped[order].tolist() == two.stopped.tolist()


@given(num_samples=st.integers(1, 60), batch_size=st.integers(1, 30), steps=st.integers(1, 40))
def test_samples_of_steps_and_steps_of_samples(num_samples, batch_size, steps):
    """As the batches of local training are: the last one of an epoch may be short."""
    work = Work(num_samples, batch_size, steps)
    sizes = [len(range(start, min(start + batch_size, num_samples))) for start in range(0, num_samples, batch_size)]
    passed = np.cumsum([sizes[step % len(sizes)] for step in range(steps)])
    assert [work.samples(step) for step in range(1, steps + 1)] == passed.tolist()
    for samples in (0, 1, num_samples / 2, passed[-1] - 1, passed[-1], passed[-1] + 99):
        assert work.fitting(samples) == int((passed <= samples).sum())


def test_hours_repeat_and_join():
    calendar = Calendar((np.array([0.0, 50.0, 60.0]),), (np.array([10.0, 60.0, 100.0]),), np.array([100.0]))
    assert [calendar.left(0, at) for at in (0, 5, 10, 49, 50, 60, 99, 155)] == [10, 5, 0, 0, 60, 50, 11, 55]
    assert [calendar.wait(0, at) for at in (0, 10, 49, 50, 1010)] == [0, 40, 1, 0, 40]
    always = Calendar((np.array([0.0]),), (np.array([7.0]),), np.array([7.0]))
    assert always.left(0, 3) == math.inf


def test_a_clock_may_jump_back_to_hours_that_have_passed():
    """FedScale's index only moves forward, so that it answers by when it was asked before."""
    calendar = Calendar((np.array([10.0, 30.0]),), (np.array([20.0, 40.0]),), np.array([50.0]))
    assert [calendar.left(0, at) > 0 for at in (35, 15, 65, 12)] == [True, True, True, True]


@pytest.mark.parametrize(
    ("starts", "ends", "period", "fault"),
    [
        ([], [], 10, "0 starts and 0 ends"),
        ([1], [2, 3], 10, "1 starts and 2 ends"),
        ([math.nan], [2], 10, "no finite numbers"),
        ([1], [2], math.inf, "no finite numbers"),
        ([-1], [2], 10, "outside its period"),
        ([1], [11], 10, "outside its period"),
        ([3], [2], 10, "ends before it has begun"),
        ([1, 3], [4, 5], 10, "overlap"),
        ([5, 1], [6, 2], 10, "overlap or are not in order"),
    ],
)
def test_impossible_hours_are_refused(starts, ends, period, fault):
    with pytest.raises(ValueError, match=fault):
        Calendar((np.array(starts, float),), (np.array(ends, float),), np.array([period], float))
