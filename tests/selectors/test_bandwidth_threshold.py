from collections import Counter
from itertools import combinations
from math import inf, nan

import numpy as np
import pytest
from scipy.stats import chisquare

from fedfacet.clients.queries.resources import UploadSeconds
from fedfacet.compatibility import check_pairs
from fedfacet.devices.synthetic import LognormalDevices
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.selectors.bandwidth_threshold import BandwidthThresholdSelector, within_threshold


def bandwidth_threshold(**options):
    return BandwidthThresholdSelector(upload_seconds=UploadSeconds(), **options)


@pytest.mark.parametrize(
    ("share", "within"), [(0.0, {0, 1, 2, 3, 4}), (0.2, {0, 1, 3, 4}), (0.39, {0, 1, 3, 4}), (0.4, {0, 1, 3}), (0.99, {1})]
)
def test_the_slowest_are_below_the_threshold(share, within):
    assert set(np.flatnonzero(within_threshold(np.array([3.0, 1.0, 9.0, 2.0, 5.0]), share)).tolist()) == within


def test_those_that_are_alike_are_on_one_side():
    assert within_threshold(np.array([2.0] * 4), 0.5).all()
    assert within_threshold(np.array([2.0, 1.0, 2.0, 3.0]), 0.5).tolist() == [True, True, True, False]


def test_a_share_is_not_lost_to_rounding():
    assert within_threshold(np.arange(100.0), 0.29).sum() == 71


def test_those_that_tell_no_seconds_are_slow():
    assert within_threshold(np.array([nan, 1.0, -1.0, inf]), 0.5).tolist() == [True, True, True, True]
    assert within_threshold(np.array([nan, 1.0, 2.0, inf]), 0.5).tolist() == [False, True, True, False]


def test_it_is_uniform_over_the_fast(server):
    answers = {"upload_seconds": [3.0, 1.0, 9.0, 2.0, 5.0, 8.0]}
    run = server(bandwidth_threshold(excluded_share=0.34), 6, 2, answers=answers)
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 1501))
    assert set(drawn) == {frozenset(pair) for pair in combinations([0, 1, 3, 4], 2)}
    assert chisquare(list(drawn.values())).pvalue > 1e-4
    assert run.asked == [(1, [0, 1, 2, 3, 4, 5])], "once"


def test_places_that_are_left_go_to_the_slow(server):
    run = server(bandwidth_threshold(excluded_share=0.5), 4, 3, answers={"upload_seconds": [3.0, 1.0, 9.0, 2.0]})
    cohorts = [run.select(round) for round in range(1, 60)]
    assert {frozenset(cohort[:2]) for cohort in cohorts} == {frozenset({1, 3})}
    assert {cohort[2] for cohort in cohorts} == {0, 2}


def test_the_threshold_does_not_depend_on_who_is_away(server):
    run = server(bandwidth_threshold(excluded_share=0.5), 4, 1, answers={"upload_seconds": [3.0, 1.0, 9.0, 2.0]})
    run.select(1)
    assert {run.select(round, available=[0, 2, 3])[0] for round in range(2, 60)} == {3}


def test_in_a_federation_the_slow_never_take_part(tiny_federation):
    devices = LognormalDevices(bandwidth_sigma=1.0)
    selector = bandwidth_threshold(excluded_share=0.5)
    federation = tiny_federation(matrices=[[[2, 2], [2, 2]]] * 8, selector=selector, devices=devices, rounds=20)
    results = [federation.run_round() for _ in range(20)]
    slow = np.argsort(federation.find(SimulatedDevices).clock.nominal()[:, 2])[4:]
    counts = federation.state.participation_counts.numpy()
    assert not counts[slow].any()
    assert (counts > 0).sum() == 4
    assert [result.ledger.query_floats_up for result in results] == [8, *[0] * 19]
    assert {told.kind for told in results[0].disclosed} == {"resources"}


def test_it_is_refused_without_devices():
    with pytest.raises(ConfigError, match=r"provides 'devices', which selector=bandwidth_threshold requires, .*devices="):
        check_pairs({"selector": bandwidth_threshold(), "devices": None}, {"selector": "bandwidth_threshold"})
    check_pairs({"selector": bandwidth_threshold(), "devices": LognormalDevices()}, {})


@pytest.mark.parametrize("share", [-0.1, 1.0, nan])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ValueError, match=f"Expected `excluded_share` .*, but got {share}"):
        bandwidth_threshold(excluded_share=share)
