import itertools
import logging
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedfacet import state
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.errors import SelectionError
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.types import Broadcast, ClientTask


def pow_d(num_candidates=None):
    return PowDSelector(local_loss=LocalLoss(), num_samples=NumSamples(), num_candidates=num_candidates)


@pytest.fixture
def asked(server):
    """Return a function: losses, sizes -> a server whose clients answer with these, and who was asked what, by name."""

    def make(losses, cohort_size, *, sizes=None, num_candidates=None, seed=0):
        answers = {"local_loss": list(losses), "num_samples": sizes}
        return server(pow_d(num_candidates), len(losses), cohort_size, answers=answers, seed=seed)

    return make


# The highest losses join


def test_the_highest_losses_join_highest_first(asked):
    run = asked([0.3, 2.0, 0.1, 0.7, 1.1], 3)
    assert run.round(1) == (1, 4, 3)
    assert run.round(2, available=[0, 2, 3]) == (3, 0, 2)


def test_losses_are_asked_anew_every_round_and_sizes_never_where_all_are_candidates(asked):
    run = asked([0.3, 2.0, 0.1, 0.7, 1.1], 2)
    run.round(1)
    run.round(2, available=[0, 3])
    assert run.asked == [(1, [0, 1, 2, 3, 4]), (2, [0, 3])]
    assert set(run.disclosed) == {"local_loss"}


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.data())
def test_nobody_left_out_has_a_higher_loss(server, losses, data):
    size = data.draw(st.integers(1, len(losses)))
    run = server(pow_d(), len(losses), size, answers={"local_loss": losses})
    cohort = run.round(1)
    assert sorted((losses[k] for k in cohort), reverse=True) == sorted(losses, reverse=True)[:size]


def test_ties_are_broken_at_random(asked):
    run = asked([0.5, 0.5, 0.5, 0.1, 0.5], 2)
    drawn = Counter(frozenset(run.round(round)) for round in range(1, 1801))
    assert set(drawn) == set(map(frozenset, itertools.combinations([0, 1, 2, 4], 2)))
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_the_seed_decides_ties(asked):
    cohorts = {seed: [asked([0.0] * 9, 3, seed=seed).round(round) for round in range(1, 4)] for seed in (0, 1)}
    assert cohorts[0] == [asked([0.0] * 9, 3).round(round) for round in range(1, 4)]
    assert cohorts[0] != cohorts[1]


# Losses that are no losses


def test_a_nan_loss_ranks_below_every_number_and_is_told(asked, caplog):
    run = asked([nan, 0.2, nan, -inf, inf, 0.9], 4)
    with caplog.at_level(logging.WARNING):
        assert run.round(7) == (4, 5, 1, 3), "infinite first, minus infinity still a number"
    assert caplog.messages == ["Round 7: the loss of 2 of 6 candidates is NaN, so they rank last: clients 0, 2."]
    caplog.clear()
    assert run.round(8, available=[1, 5]) == (5, 1)
    assert caplog.messages == []


def test_nan_losses_join_where_too_few_others_are_left(asked):
    run = asked([nan, 0.2, nan, nan], 3)
    thirds = Counter(frozenset(run.round(round)[1:]) for round in range(1, 1201))
    assert all(run.round(round)[0] == 1 for round in range(1, 20))
    assert set(thirds) == {frozenset(pair) for pair in itertools.combinations([0, 2, 3], 2)}
    assert chisquare(list(thirds.values())).pvalue > 1e-4


def test_where_every_loss_is_nan_the_cohort_is_drawn_uniformly(asked):
    run = asked([nan] * 5, 2)
    drawn = Counter(frozenset(run.round(round)) for round in range(1, 2001))
    assert len(drawn) == 10
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_a_long_list_of_nan_is_cut_short(asked, caplog):
    with caplog.at_level(logging.WARNING):
        asked([nan] * 40, 2).round(1)
    assert caplog.messages[0].endswith("clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 30 more.")


# Candidates


def successive(sizes, d):
    """The probability of each set of d clients, one drawn after another in proportion to its size."""
    sets = Counter()
    for order in itertools.permutations(range(len(sizes)), d):
        left, probability = sum(sizes), 1.0
        for client_id in order:
            probability *= sizes[client_id] / left
            left -= sizes[client_id]
        sets[frozenset(order)] += probability
    return sets


def candidates(run, round, available=None):
    run.asked.clear()
    run.round(round, available)
    return frozenset(run.asked[-1][1])


def test_candidates_are_drawn_in_proportion_to_their_samples_without_replacement(asked):
    sizes = [10, 20, 30, 40, 1]
    run = asked([0.1] * 5, 1, sizes=sizes, num_candidates=2)
    drawn = Counter(candidates(run, round) for round in range(1, 2001))
    expected = successive(sizes, 2)
    counts = [drawn[pair] for pair in expected]
    assert sum(counts) == 2000
    assert chisquare(counts, [2000 * probability for probability in expected.values()]).pvalue > 1e-4


def test_only_candidates_are_asked_and_join(asked):
    run = asked(range(30), 4, sizes=[5] * 30, num_candidates=6)
    for round in range(1, 30):
        asked_now = candidates(run, round)
        assert len(asked_now) == 6
        assert run.asked[-1][1] == sorted(asked_now)
    run.asked.clear()
    cohort = run.round(50)
    assert list(cohort) == sorted(run.asked[-1][1], reverse=True)[:4], "client k has loss k"


def test_sizes_are_asked_once(asked):
    run = asked([0.1] * 6, 1, sizes=[1, 2, 3, 4, 5, 6], num_candidates=2)
    run.round(1, available=[0, 1, 4])
    run.round(2, available=[0, 1, 4])
    run.round(3)
    of_sizes = [(round, clients) for round, clients in run.asked if len(clients) > 2]
    assert of_sizes == [(1, [0, 1, 4]), (3, [2, 3, 5])]


def test_a_client_without_samples_is_a_candidate_only_where_others_lack(asked):
    run = asked([0.1] * 5, 1, sizes=[0, 3, 0, 2, 1], num_candidates=3)
    assert {candidates(run, round) for round in range(1, 50)} == {frozenset([1, 3, 4])}
    assert {candidates(run, round, [0, 1, 2, 3]) for round in range(50, 150)} == {frozenset([0, 1, 3]), frozenset([1, 2, 3])}


def test_where_nobody_has_samples_candidates_are_drawn_uniformly(asked):
    run = asked([0.1] * 4, 1, sizes=[0] * 4, num_candidates=2)
    drawn = Counter(candidates(run, round) for round in range(1, 1801))
    assert len(drawn) == 6
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_where_fewer_are_there_than_candidates_all_of_them_are_asked(asked):
    run = asked([0.1, 0.2, 0.3, 0.4], 2, sizes=[1, 1, 1, 1], num_candidates=3)
    assert run.round(1, available=[0, 1, 3]) == (3, 1)
    assert run.round(2, available=[2]) == (2,)
    assert "num_samples" not in run.disclosed


def test_fewer_candidates_than_the_cohort_are_refused(asked):
    with pytest.raises(SelectionError, match=r"as the cohort has members, 4, but got selector.num_candidates=3: raise it"):
        asked([0.1] * 6, 4, sizes=[1] * 6, num_candidates=3).round(1)


@pytest.mark.parametrize("value", [0, -1, 1.5, "all"])
def test_impossible_numbers_of_candidates_are_refused(value):
    with pytest.raises(ValueError, match=f"Expected `num_candidates` to be .*, but got {value!r}"):
        pow_d(value)


@pytest.mark.parametrize("num_candidates", [1, 7, 150])
def test_a_large_population(asked, num_candidates):
    generator = np.random.default_rng(0)
    losses, sizes = generator.random(3000).tolist(), generator.integers(1, 50, 3000).tolist()
    run = asked(losses, 1, sizes=sizes, num_candidates=num_candidates)
    (winner,) = run.round(1)
    assert losses[winner] == max(losses[k] for k in run.asked[-1][1])
    assert len(run.asked[-1][1]) == num_candidates


# In a federation


def test_in_a_federation_every_client_is_sent_the_model_and_answers_one_float(tiny_federation):
    """FedDiverse, table 2: one float up, and the model down to everybody outside the cohort."""
    federation = tiny_federation(selector=pow_d(), cohort_size=1, rounds=2)
    theta = state.num_floats(federation.state.model)
    for _ in range(2):
        ledger = federation.run_round().ledger
        assert (ledger.query_floats_up, ledger.query_floats_down, ledger.query_samples) == (4, 3 * theta, 4 * 16)


def test_in_a_federation_candidates_alone_pay(tiny_federation):
    federation = tiny_federation(selector=pow_d(num_candidates=2), cohort_size=1, rounds=2)
    theta = state.num_floats(federation.state.model)
    ledgers = [federation.run_round().ledger for _ in range(2)]
    assert [ledger.query_floats_up for ledger in ledgers] == [4 + 2, 2], "all sizes once, two losses every round"
    assert [ledger.query_floats_down for ledger in ledgers] == [theta, theta]
    assert [ledger.query_samples for ledger in ledgers] == [2 * 16, 2 * 16]


def test_in_a_federation_the_client_on_which_the_model_does_worst_joins(tiny_federation, tiny_clients):
    federation = tiny_federation(selector=pow_d(), cohort_size=2, rounds=3, lr=0.5)
    bystanders = tiny_clients()
    for round in range(1, 4):
        weights = state.clone(federation.state.model)
        losses = [answer_query(bystanders, LocalLoss(), ClientTask(k, round, 0, Broadcast(weights))).value for k in range(4)]
        assert list(federation.run_round().cohort) == sorted(range(4), key=lambda k: -losses[k])[:2]
