import logging
from collections import Counter
from dataclasses import fields
from math import inf, log, nan, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedfacet import rng
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LossMoments
from fedfacet.devices.synthetic import LognormalDevices, UniformDevices
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.records import ClientReceipt, Ledger, RoundResult
from fedfacet.selectors.oort import OortSelector, preferred_duration, scores, utility_of

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]], [[1, 2], [3, 1]])


def oort(**options):
    return OortSelector(loss_moments=LossMoments(), num_samples=NumSamples(), **options)


def moments(utility):
    """Return moments of one sample with this utility."""
    return [1.0, utility, utility**2]


@pytest.fixture
def knowing(server):
    """Return a function: utilities (-inf: not heard), rounds, seconds, cohort size -> a server that knows them."""

    def make(utilities, rounds, cohort_size, *, durations=None, sizes=None, seed=0, **options):
        number = len(utilities)
        answers = {"loss_moments": [moments(1.0)] * number, "num_samples": sizes or [10] * number}
        run = server(oort(**options), number, cohort_size, answers=answers, seed=seed)
        run.state |= {
            "utilities": torch.tensor(utilities, dtype=torch.float64),
            "rounds": torch.tensor(rounds, dtype=torch.int64),
            "durations": torch.tensor(durations or [0.0] * number, dtype=torch.float64),
        }
        return run

    return make


def heard(run, round, utilities, durations=None):
    """Have the selector learn from a round in which these clients reported."""
    receipts = tuple(ClientReceipt(k, 1, 1, 1.0, 1, {"loss_moments": moments(value)}) for k, value in utilities.items())
    durations = durations or {}
    result = RoundResult(round, tuple(utilities), receipts, {}, Ledger(), {}, run.num_clients, durations=durations)
    run.state = run.selector.observe(run.state, result, [], rng.stream(0, "selector-learns", round))
    return run.state


# Scores


def score(utilities, rounds, durations, **options):
    options = {"round": 5, "preferred": inf, "clip": 1.0, "time_exponent": 2.0} | options
    return scores(np.array(utilities), np.array(rounds), np.array(durations), **options)


def test_the_utility_of_some_losses():
    losses = np.array([0.1, 2.0, 3.0])
    assert utility_of([3.0, losses.sum(), (losses**2).sum()]) == pytest.approx(3 * sqrt((losses**2).mean()))
    assert utility_of([0.0, 0.0, 0.0]) == 0


def test_scores_of_four_clients_by_hand():
    """Utilities 2, 4, 6, 10 lie 0, 1/4, 1/2 and 1 of the way; the last two take 2 and 4 times as long as is preferred."""
    found = score([2.0, 4.0, 6.0, 10.0], [1, 2, 4, 4], [1.0, 5.0, 10.0, 20.0], preferred=5.0)
    new = [sqrt(0.1 * log(5) / last) for last in (1, 2, 4, 4)]
    assert found == pytest.approx([new[0], 0.25 + new[1], (0.5 + new[2]) / 4, (1 + new[3]) / 16])


def test_the_defaults_are_those_of_the_released_code():
    """``training/argParser.py``, where ``exploration_least`` is ``exploration_min`` and ``cutoff`` is ``cut_off_util``."""
    defaults = {field.name: field.default for field in fields(OortSelector)}
    code = {"exploration": 0.9, "exploration_decay": 0.95, "exploration_least": 0.2, "time_exponent": 2.0, "clip": 0.98}
    code |= {"cutoff": 0.7, "window": 5.0, "round_threshold": 10, "pacer_step": 20, "pacer_delta": 5}
    assert {name: defaults[name] for name in code} == code


def test_utilities_above_a_quantile_are_cut_off():
    """Of four, the quantile .5 is the third."""
    found = score([2.0, 4.0, 6.0, 10.0], [1] * 4, [0.0] * 4, clip=0.5, round=1)
    assert found == pytest.approx([0, 0.5, 1, 1])


def test_utilities_that_are_all_alike_count_as_one():
    assert score([3.0] * 3, [1] * 3, [0.0] * 3, round=1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("durations", [[1.0, 50.0, 3.0, 9.0], [7.0] * 4])
def test_without_exponent_or_with_equal_durations_the_clock_changes_nothing(durations):
    exponent = 2.0 if len(set(durations)) == 1 else 0.0
    preferred = preferred_duration(np.array(durations), 10.0)
    known = [2.0, 4.0, 6.0, 10.0], [1, 2, 4, 4]
    expected = score(*known, [0.0] * 4)
    assert score(*known, durations, preferred=preferred, time_exponent=exponent).tolist() == expected.tolist()


# Draws


def test_all_above_the_cutoff_are_drawn_by_score(knowing):
    """Of one place, the cutoff is .7 times the second score; utilities 0 to 10, all of the first round, in round 1."""
    utilities = [0.0, 10.0, 8.0, 6.0, 5.0]
    run = knowing(utilities, [1] * 5, 1)
    drawn = Counter()
    for seed in range(1500):
        run.seed = seed
        drawn[run.select(1)[0]] += 1
    assert set(drawn) == {1, 2, 3}, "6 is at least .7 * 8, 5 is not"
    assert chisquare([drawn[1], drawn[2], drawn[3]], [1500 * part / 24 for part in (10, 8, 6)]).pvalue > 1e-4


def test_slow_clients_are_drawn_less(knowing):
    run = knowing([5.0] * 4, [1] * 4, 1, durations=[1.0, 1.0, 1.0, 3.0], cutoff=0.0)
    drawn = Counter()
    for seed in range(1500):
        run.seed = seed
        drawn[run.select(1)[0]] += 1
    assert chisquare([drawn[k] for k in range(4)], [1500 * part / (3 + 1 / 9) for part in (1, 1, 1, 1 / 9)]).pvalue > 1e-4


@pytest.mark.parametrize(("round", "exploited"), [(1, 1), (10, 4), (20, 6), (29, 7), (100, 8)])
def test_the_share_of_new_clients_decays(knowing, round, exploited):
    """Of ten places, floor(10 (1 - max(.9 * .95^t, .2))) are for those who were heard."""
    assert exploited == int(10 * (1 - max(0.9 * 0.95**round, 0.2)) + 1e-9)
    run = knowing([5.0] * 20 + [-inf] * 20, [1] * 20 + [0] * 20, 10)
    assert sum(k < 20 for k in run.select(round)) == exploited


def test_all_places_are_for_those_heard_if_there_are_no_others(knowing):
    run = knowing([1.0, 1.0, 30.0, 31.0, -inf], [1] * 4 + [0], 2)
    assert set(run.select(1, available=[0, 1, 2, 3])) == {2, 3}
    assert 4 in run.select(1)


def test_new_clients_are_drawn_by_size_from_the_largest(knowing):
    """Of one place, from two."""
    run = knowing([-inf] * 4, [0] * 4, 1, sizes=[10, 30, 20, 5], window=2.0)
    drawn = Counter()
    for seed in range(1500):
        run.seed = seed
        drawn[run.select(1)[0]] += 1
    assert set(drawn) == {1, 2}
    assert chisquare([drawn[1], drawn[2]], [900, 600]).pvalue > 1e-4


def test_places_that_are_left_are_drawn_from_all(knowing):
    """One new client, and one place for those heard: two more are left over."""
    run = knowing([5.0, 4.0, 3.0, 2.0, -inf], [1, 1, 1, 1, 0], 4)
    for seed in range(20):
        run.seed = seed
        assert 4 in (cohort := run.select(1))
        assert len(set(cohort)) == 4


def test_sizes_are_asked_once_and_losses_of_the_cohort(server):
    run = server(oort(), 6, 2, answers={"loss_moments": [moments(1.0)] * 6, "num_samples": [10] * 6})
    first, second = run.select(1), run.select(2)
    assert [asked for _, asked in run.asked] == [list(range(6)), first, second]


# What it learns


def test_the_last_report_counts(server):
    run = server(oort(), 4, 2)
    heard(run, 1, {1: 3.0, 2: 5.0}, {1: 8.0, 2: 9.0})
    known = heard(run, 2, {1: 1.0})
    assert known["utilities"].tolist() == [-inf, 1.0, 5.0, -inf]
    assert known["rounds"].tolist() == [0, 2, 1, 0]
    assert known["durations"].tolist() == [0.0, 8.0, 9.0, 0.0]


def test_what_is_not_finite_counts_as_not_heard_and_is_told(server, caplog):
    run = server(oort(), 4, 2)
    heard(run, 1, dict.fromkeys(range(4), 2.0))
    with caplog.at_level(logging.WARNING):
        known = heard(run, 2, {0: nan, 1: 7.0, 3: inf})
    assert (known["utilities"].tolist(), known["rounds"].tolist()) == ([-inf, 7.0, 2.0, -inf], [0, 2, 1, 0])
    assert caplog.messages == ["Round 2: the losses of 2 of 3 clients are not finite and count as not heard: clients 0, 3."]


@pytest.mark.parametrize(
    ("utilities", "expected"), [((4.0, 4.2), 15.0), ((4.0, 6.0), 10.0), ((4.0, 30.0), 5.0), ((4.0, 0.1), 10.0)]
)
def test_the_pacer_waits_longer_where_utility_stands_still(server, utilities, expected):
    """Two windows of two rounds; the first report of a client is no exploitation."""
    run = server(oort(pacer_step=2), 4, 2)
    heard(run, 1, {0: 4.0, 1: 4.0})
    run.state["history"] = []
    for round, utility in ((1, utilities[0]), (2, utilities[0]), (3, utilities[1])):
        assert (
            heard(run, round, {0: utility, 1: utility, 2: 100.0 * utility} if round == 1 else {0: utility})["percentile"] == 10
        )
    assert heard(run, 4, {0: utilities[1]})["percentile"] == expected
    assert len(run.state["history"]) == 4
    assert len(heard(run, 5, {0: 1.0})["history"]) == 4


def test_the_pacer_ends_at_all_clients(server):
    run = server(oort(pacer_step=1, round_threshold=97.0), 2, 1)
    for round in range(1, 6):
        heard(run, round, {0: 4.0})
    assert run.state["percentile"] == 100.0
    assert preferred_duration(np.array([1.0, 2.0]), 100.0) == inf


# In a federation


def cohorts(tiny_federation, rounds=8, **options):
    federation = tiny_federation(matrices=MATRICES, cohort_size=3, rounds=rounds, **options)
    return [federation.run_round().cohort for _ in range(rounds)], federation


def test_without_exponent_or_on_equal_devices_cohorts_are_those_without_a_clock(tiny_federation):
    expected, without = cohorts(tiny_federation, selector=oort())
    assert not without.state.selector["durations"].any()
    spread = LognormalDevices(mean_seconds_per_sample=1.0, sigma=2.0)
    blind, on_devices = cohorts(tiny_federation, selector=oort(time_exponent=0.0), devices=spread)
    assert blind == expected
    assert on_devices.state.selector["durations"].count_nonzero() == 6
    # Alike in bandwidth, and with nothing to compute that takes time, though clients have unlike numbers of samples.
    alike = UniformDevices(seconds_per_sample=1e-300)
    assert cohorts(tiny_federation, selector=oort(), devices=alike)[0] == expected


def test_the_slow_take_part_less(tiny_federation):
    """Of two that are alike but for their speed."""
    spread = LognormalDevices(mean_seconds_per_sample=1.0, sigma=2.0)
    options = {"matrices": [[[2, 2], [2, 2]]] * 8, "cohort_size": 2, "rounds": 60, "devices": spread}
    federation = tiny_federation(selector=oort(), **options)
    for _ in range(60):
        federation.run_round()
    counts, seconds = federation.state.participation_counts, federation.find(SimulatedDevices).clock.nominal().sum(axis=1)
    assert counts[int(seconds.argmax())] < counts[int(seconds.argmin())]


def test_the_ledger_has_three_floats_of_each(tiny_federation):
    federation = tiny_federation(selector=oort(), matrices=MATRICES, cohort_size=2)
    result = federation.run_round()
    assert result.ledger.query_floats_up == 6 + 2 * 3
    assert result.ledger.query_floats_down == 0
    assert result.ledger.query_samples == sum(np.sum(MATRICES[k]) for k in result.cohort)


@pytest.mark.parametrize(
    ("option", "value"),
    [("exploration", 1.1), ("time_exponent", -1.0), ("clip", 0.0), ("cutoff", nan), ("window", 0.5), ("round_threshold", 0.0)],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        oort(**{option: value})
