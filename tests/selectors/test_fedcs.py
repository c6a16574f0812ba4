import itertools
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.clients.queries.resources import Resources
from fedfacet.compatibility import check_pairs
from fedfacet.devices.schedule import Load, schedule
from fedfacet.devices.synthetic import MobileEdgeDevices, UniformDevices
from fedfacet.errors import ConfigError
from fedfacet.selectors.fedcs import FedCSSelector, chosen_by_deadline

THREE = [[1.0, 1.0, 2.0], [2.0, 6.0, 2.0], [4.0, 4.0, 3.0]]
"""Seconds of download, training and upload."""


def fedcs(**options):
    return FedCSSelector(resources=Resources(), **options)


def taken(seconds, order):
    """The seconds of a round in which these clients send in this order: equations 3 and 4, written out."""
    busy = 0.0
    for k in order:
        busy += seconds[k][2] + max(0.0, seconds[k][1] - busy)
    return max((seconds[k][0] for k in order), default=0.0) + busy


def house(seconds, cohort, uplink="sequential"):
    """The seconds of a round on devices."""
    down, train, up = np.array([seconds[k] for k in cohort], dtype=float).reshape(-1, 3).T
    load = Load(np.array(cohort, dtype=np.int64), down, train, up, np.full(len(cohort), inf))
    return schedule(load, uplink=uplink, deadline=None, wanted=None).seconds


# The algorithm


@pytest.mark.parametrize(("deadline", "chosen", "seconds"), [(4.0, [], 0), (12.0, [0, 1], 10), (16.0, [0, 1, 2], 15)])
def test_three_clients_by_hand(deadline, chosen, seconds):
    assert chosen_by_deadline(np.array(THREE), deadline) == chosen
    assert taken(THREE, chosen) == seconds


def test_a_round_ends_before_the_deadline_and_not_at_it():
    assert chosen_by_deadline(np.array(THREE), 10.0) == [0]
    assert chosen_by_deadline(np.array(THREE), 10.0 + 1e-9) == [0, 1]


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_it_keeps_the_deadline_and_never_beats_the_best_set(seconds, deadline):
    """The best of all sets, each in the best of all orders."""
    chosen = chosen_by_deadline(np.array(seconds, dtype=float), deadline)
    assert taken(seconds, chosen) < deadline
    assert house(seconds, chosen) <= taken(seconds, chosen), "no order is faster than by readiness"
    assert house(seconds, chosen, "parallel") <= taken(seconds, chosen)
    fitting = [
        cohort
        for number in range(len(seconds) + 1)
        for cohort in itertools.combinations(range(len(seconds)), number)
        if min(taken(seconds, order) for order in itertools.permutations(cohort)) < deadline
    ]
    assert len(chosen) <= max(map(len, fitting))
    assert bool(chosen) == (min(map(sum, seconds)) < deadline), "one that takes least alone is looked at first"


@pytest.mark.parametrize("num_clients", [7, 8])
def test_it_never_beats_the_best_set_of_up_to_eight(num_clients):
    """The best order is by readiness, as devices have it; so all sets of eight are 256 rounds."""
    for seed in range(8):
        seconds = np.random.default_rng(seed).exponential(size=(num_clients, 3)) * [1, 3, 1]
        for deadline in (2.0, 5.0, 9.0):
            chosen = chosen_by_deadline(seconds, deadline)
            best = max(
                number
                for number in range(num_clients + 1)
                for cohort in itertools.combinations(range(num_clients), number)
                if house(seconds, cohort) < deadline
            )
            assert len(chosen) <= best
            assert taken(seconds, chosen) < deadline


def test_with_time_enough_all_are_chosen():
    for seed in range(50):
        seconds = np.random.default_rng(seed).exponential(size=(12, 3))
        assert sorted(chosen_by_deadline(seconds, 1e6)) == list(range(12))


@pytest.mark.parametrize("strange", [[nan, 1.0, 1.0], [1.0, inf, 1.0], [1.0, 1.0, -5.0]])
def test_clients_that_tell_no_seconds_are_not_chosen(strange):
    assert chosen_by_deadline(np.array([*THREE, strange]), 1e9) == [0, 1, 2]


# The selector


def test_candidates_are_a_share_of_those_available(server):
    run = server(fedcs(deadline=1e9, candidates=0.07), 100, 20, answers={"resources": [[1.0, 1.0, 1.0]] * 100})
    cohort = run.select(1)
    assert len(cohort) == 7
    assert sorted(run.asked[0][1]) == sorted(cohort)
    assert len(run.select(2, available=range(15))) == 2, "rounded up"


def test_overhead_is_of_the_deadline(server):
    answers = {"resources": THREE}
    assert len(server(fedcs(deadline=16.0, candidates=1.0), 3, 1, answers=answers).select(1)) == 3
    assert len(server(fedcs(deadline=16.0, candidates=1.0, overhead=4.0), 3, 1, answers=answers).select(1)) == 2


def test_clients_that_are_alike_are_taken_by_lot(server):
    run = server(fedcs(deadline=3.5, candidates=1.0), 4, 1, answers={"resources": [[1.0, 1.0, 1.0]] * 4})
    assert {tuple(run.select(round)) for round in range(1, 60)} == {(0,), (1,), (2,), (3,)}


# In a federation


@pytest.mark.parametrize("uplink", ["sequential", "parallel"])
def test_simulated_rounds_keep_the_deadline(tiny_federation, uplink):
    devices = MobileEdgeDevices(jitter=0.0, radio_jitter=0.0, slowest=1.0, uplink=uplink)
    sizes = set()
    for deadline in (0.1, 0.5, 2.0, 60.0):
        selector = fedcs(deadline=deadline, candidates=0.75)
        federation = tiny_federation(matrices=[[[4, 4], [4, 4]]] * 8, selector=selector, devices=devices, rounds=4)
        for _ in range(4):
            result = federation.run_round()
            assert result.metrics["sim/seconds"] - result.metrics["sim/ask"] < deadline
            assert result.ledger.query_floats_up == 6 * 3
            assert {told.kind for told in result.disclosed} == {"resources"}
            sizes.add(len(result.cohort))
    assert {0, 6} < sizes, "from nobody to all candidates"


def test_it_is_refused_without_devices():
    with pytest.raises(ConfigError, match=r"provides 'devices', which selector=fedcs requires, .*devices="):
        check_pairs({"selector": fedcs(), "devices": None}, {"selector": "fedcs"})
    check_pairs({"selector": fedcs(), "devices": UniformDevices()}, {})


@pytest.mark.parametrize(("option", "value"), [("deadline", 0.0), ("candidates", 0.0), ("candidates", 1.1), ("overhead", nan)])
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        fedcs(**{option: value})
