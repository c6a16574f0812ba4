"""Probe + fairness: its terms, its places, its promises to the starved; and what probes cost a whole federation."""

import logging
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import chisquare

from fedfacet import state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.probe_norm import ProbeNorm
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.participation import Dropouts
from fedfacet.schedulers import ExponentialScheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.probe_fairness import ProbeFairnessSelector


def selector(**settings):
    return ProbeFairnessSelector(probe=ProbeNorm(), **settings)


@pytest.fixture
def served(server):
    """Return a function: probe norms, cohort size, settings -> a server whose clients answer with these."""

    def make(norms, cohort_size, *, seed=0, **settings):
        return server(selector(**settings), len(norms), cohort_size, answers={"probe_norm": list(norms)}, seed=seed)

    return make


def told(run, *cohorts):
    """Have the selector believe that these were the cohorts of rounds 1, 2, ..."""
    for round, cohort in enumerate(cohorts, 1):
        run.observe(round, cohort)
    return len(cohorts) + 1


GREEDY = {"epsilon": 0.0, "candidate_factor": 100, "max_gap": None}
"""Everybody is a candidate, and the highest scores win."""


def test_without_fairness_the_longest_probes_win(served):
    run = served([0.3, 2.0, 0.1, 0.7, 1.1], 3, fairness_weight=0.0, **GREEDY)
    assert [run.round(round) for round in (1, 2)] == [(1, 4, 3)] * 2
    assert run.asked == [(1, [0, 1, 2, 3, 4]), (2, [0, 1, 2, 3, 4])]


def test_the_seldom_selected_win_by_inverse_frequency(served):
    run = served([9.0, 1.0, 1.0, 1.0], 3, fairness_weight=1.0, fairness="inverse_frequency", **GREEDY)
    now = told(run, (0, 1, 2), (0, 1), (0,))
    assert run.round(now) == (3, 2, 1)


def test_those_selected_long_ago_win_by_recency(served):
    run = served([9.0, 1.0, 1.0, 1.0], 3, fairness_weight=1.0, fairness="recency", **GREEDY)
    now = told(run, (1,), (1,), (1,), (2,), (3,), (0,))
    assert run.round(now) == (1, 2, 3), "however often: client 1 three times, but last in round 3"


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_scores_are_those_of_the_definition(served, share, weight):
    norms, counts, last = [1.0, 4.0, 2.0, 3.0], [3, 1, 0, 1], [4, 2, 0, 5]
    run = served(norms, 2, fairness_weight=weight, frequency_share=share, **GREEDY)
    history = {k: [counts[k], last[k]] for k in (0, 1, 3)}

    def unit(values):
        values = np.array(values, dtype=float)
        return (values - values.min()) / (values.max() - values.min())

    fair = unit(share * unit([1 / (1 + count) for count in counts]) + (1 - share) * unit([6 - past for past in last]))
    expected = (1 - weight) * unit(norms) + weight * fair
    assert run.selector._scores([0, 1, 2, 3], history, run.context(6)) == pytest.approx(expected)


def test_a_term_in_which_all_are_equal_does_not_count(served):
    run = served([0.5] * 4, 2, fairness_weight=0.3, **GREEDY)
    assert run.selector._scores([0, 1, 2, 3], {}, run.context(1)).tolist() == [0.0] * 4
    drawn = Counter(k for round in range(1, 1_001) for k in run.select(round))
    assert chisquare([drawn[k] for k in range(4)]).pvalue > 0.001, "ties are broken at random"


# Candidates, exploration, the starved


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 3), (1.5, 5), (2.0, 6), (9.0, 10)])
def test_only_the_candidates_are_probed(served, factor, expected):
    run = served(range(10), 3, candidate_factor=factor, max_gap=None)
    for round in range(1, 6):
        cohort = run.round(round)
        assert len(run.asked[-1][1]) == expected
        assert set(cohort) <= set(run.asked[-1][1])
    assert len({tuple(clients) for _, clients in run.asked}) > 1 or expected == 10, "drawn anew every round"


@pytest.mark.parametrize(("epsilon", "explored"), [(0.0, 0), (0.1, 0), (0.125, 1), (0.2, 1), (0.5, 2), (1.0, 4)])
def test_places_for_exploration_are_rounded(served, epsilon, explored):
    """Of four places; the others go to the highest scores."""
    run = served([0, 1, 2, 3, 4, 5, 6, 7], 4, epsilon=epsilon, fairness_weight=0.0, candidate_factor=2, max_gap=None)
    cohorts = [run.round(round) for round in range(1, 60)]
    best = (7, 6, 5, 4)[: 4 - explored]
    assert {cohort[: 4 - explored] for cohort in cohorts} == {best}
    assert len({cohort[4 - explored :] for cohort in cohorts}) > 1 or not explored


@pytest.mark.parametrize("temperature", [0.3, 0.7, 5.0])
def test_exploration_follows_the_softmax(served, temperature):
    norms = [0.0, 0.25, 0.5, 1.0]
    run = served(norms, 1, epsilon=1.0, temperature=temperature, fairness_weight=0.0, candidate_factor=4, max_gap=None)
    drawn = Counter(run.select(round)[0] for round in range(1, 1_501))
    assert chisquare([drawn[k] for k in range(4)], 1_500 * softmax(np.array(norms) / temperature)).pvalue > 0.001


def test_a_temperature_near_zero_is_greedy_and_no_division_by_zero(served):
    run = served([0.0, 0.25, 0.5, 1.0], 2, epsilon=1.0, temperature=1e-300, fairness_weight=0.0, candidate_factor=4)
    assert run.round(1) == (3, 2)


def test_whoever_waits_too_long_is_selected_the_longest_wait_first(served):
    run = served([0.0, 0.0, 5.0, 9.0, 0.1], 3, fairness_weight=0.0, max_gap=3, epsilon=0.0, candidate_factor=100)
    now = told(run, (0, 2), (1, 3), (3, 4), (3, 4))
    assert now == 5
    assert run.round(now) in ((0, 2, 1), (2, 0, 1))
    assert run.asked == [], "all places are taken, so nobody is probed"


def test_the_starved_need_not_be_candidates_unless_that_is_chosen(served):
    for pool, always in (("available", True), ("candidates", False)):
        run = served([1.0] * 20, 1, max_gap=2, starvation_pool=pool, candidate_factor=1)
        now = told(run, (*range(1, 20),), (*range(1, 20),))  # client 0 waits since the start
        chosen = [run.selector.select(run.state, replace(run.context(now), rng=np.random.default_rng(s))) for s in range(30)]
        assert (chosen == [[0]] * 30) is always


def test_who_was_never_selected_waits_since_the_start_or_for_ever(served, caplog):
    run = served([1.0, 1.0, 9.0], 1, fairness_weight=0.0, max_gap=10, epsilon=0.0, candidate_factor=9)
    assert run.round(1) == (2,)
    early = served([1.0, 1.0, 9.0], 2, fairness_weight=0.0, max_gap=10, never_selected="overdue", candidate_factor=9)
    told(early, (2,))
    with caplog.at_level(logging.INFO, "fedfacet"):
        assert sorted(early.round(2)) == [0, 1]
    assert "Round 2: 2 forced, 0 by score, 0 explored, of 3 candidates." in caplog.messages


@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 6), st.integers(0, 3))
def test_nobody_starves(server, num_clients, cohort_size, max_gap, seed):
    """A client waits at most until all who have waited as long have had their turn."""
    cohort_size = min(cohort_size, num_clients)
    run = server(
        selector(max_gap=max_gap, fairness_weight=0.0),
        num_clients,
        cohort_size,
        answers={"probe_norm": list(range(num_clients))},
        seed=seed,
    )
    last = dict.fromkeys(range(num_clients), 0)
    for round in range(1, 41):
        for client_id in run.round(round):
            last[client_id] = round
        assert max(round - past for past in last.values()) <= max_gap + math.ceil(num_clients / cohort_size)


def test_probes_that_diverge_rank_last_and_are_logged(served, caplog):
    run = served([math.nan, 1.0, math.inf, 3.0, 2.0], 3, fairness_weight=0.0, **GREEDY)
    with caplog.at_level(logging.INFO, "fedfacet"):
        assert run.round(1) == (3, 4, 1)
    assert "2 of 5 probes are not finite" in caplog.text
    assert "0 forced, 3 by score, 0 explored, of 5 candidates" in caplog.text
    run = served([math.nan] * 3, 2, **GREEDY)
    assert len(set(run.round(1))) == 2


def test_a_probe_that_diverges_leaves_the_others_scores_alone(served):
    """By hand: 10 and 10.1 are scored 0 and 0.7, who was never selected 0.3; were the NaN a zero, 10 would be scored 0.69."""
    run = served([math.nan, 10.0, 10.1], 2, fairness_weight=0.3, frequency_share=1.0, **GREEDY)
    assert run.round(told(run, (1, 2))) == (2, 0)


def test_the_history_is_that_of_clients_ever_selected(served):
    run = served([1.0] * 100, 2)
    for round in range(1, 4):
        run.round(round)
    history = run.state["history"]
    assert sum(count for count, _ in history.values()) == 6
    assert len(history) <= 6


# The whole federation


class Once(ClientSelector):
    """Probes some clients and selects others, as it is told."""

    def __init__(self, probed, cohort):
        self.probed, self.cohort = probed, cohort

    def select(self, server, context):
        context.ask(ProbeNorm(probe_steps=2), self.probed)
        return list(self.cohort)


class Forgetful(SequentialEngine):
    """Loses whatever a probe left behind."""

    def run(self, tasks):
        self.clients.probed.kept.clear()
        return super().run(tasks)


def test_only_the_probes_of_those_not_selected_are_counted(tiny_federation):
    """Two steps of 8 samples each; a selected client's are part of its training."""
    for engine in (SequentialEngine(device="cpu"), Forgetful(device="cpu")):
        federation = tiny_federation(
            selector=Once([0, 1, 3], [1, 2]), engine=engine, local=LocalTraining(batch_size=8, amount=2)
        )
        ledger = federation.run_round().ledger
        floats = state.num_floats(federation.state.model)
        assert ledger.query_samples == 2 * 16
        assert ledger.query_floats_up == 3
        assert ledger.query_floats_down == 2 * floats
        assert (ledger.floats_down, ledger.floats_up) == (2 * floats, 2 * floats)


def test_the_probes_of_those_who_never_answer_are_counted(tiny_federation):
    federation = tiny_federation(
        selector=Once([0, 1, 3], [1, 2]),
        participation=Dropouts(dropout_probability=1.0),
        local=LocalTraining(batch_size=8, amount=2),
    )
    assert federation.run_round().ledger.query_samples == 3 * 16


def test_probing_does_not_change_what_the_selected_learn(tiny_federation):
    settings = {"rounds": 3, "local": LocalTraining(batch_size=4, amount=1)}
    digests = {
        state.digest(tiny_federation(selector=Once(probed, [1, 2]), engine=engine(device="cpu"), **settings).fit().model)
        for probed in ([], [1], [0, 1, 2, 3])
        for engine in (SequentialEngine, Forgetful)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("scheduler", [lambda: None, partial(ExponentialScheduler, decay=0.5)], ids=["constant", "falling"])
def test_a_whole_run_is_the_same_with_and_without_the_cache_and_after_a_resume(tiny_federation, scheduler):
    made = lambda engine: tiny_federation(  # noqa: E731
        rounds=6,
        selector=selector(epsilon=0.5, max_gap=4),
        scheduler=scheduler(),
        engine=engine(device="cpu"),
        local=LocalTraining(batch_size=4),
    )
    whole = made(SequentialEngine).fit()
    forgetful = made(Forgetful).fit()
    first = made(SequentialEngine)
    for _ in range(3):
        first.run_round()
    resumed = made(SequentialEngine)
    resumed.restore(first.state)
    for other in (forgetful, resumed.fit()):
        assert state.digest(other.model) == state.digest(whole.model)
        assert other.selector == whole.selector
        assert other.disclosures == whole.disclosures


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fairness_weight": 1.5}, r"`fairness_weight` in \[0, 1\], but got 1\.5"),
        ({"frequency_share": -1}, "`frequency_share` in"),
        ({"epsilon": math.nan}, "`epsilon` in"),
        ({"fairness": "none"}, "`fairness` to be 'both', 'inverse_frequency' or 'recency', but got 'none'"),
        ({"starvation_pool": "all"}, "`starvation_pool` to be 'available' or 'candidates'"),
        ({"never_selected": "never"}, "`never_selected` to be 'since_start' or 'overdue'"),
        ({"candidate_factor": 0.5}, "`candidate_factor` to be 1 or larger, and finite, but got 0.5"),
        ({"temperature": 0.0}, "`temperature` to be larger than 0 and finite"),
        ({"max_gap": 0}, "`max_gap` to be a whole number, 1 or larger, or null"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        selector(**settings)
