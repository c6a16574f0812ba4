import itertools
import logging
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedfacet import rng
from fedfacet.aggregators.agnostic import AgnosticFL
from fedfacet.aggregators.q_fedavg import QFedAvg
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.records import Disclosed, Ledger, RoundResult
from fedfacet.selectors.agnostic import AgnosticSelector

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


def agnostic(**options):
    return AgnosticSelector(local_loss=LocalLoss(), **options)


def told(losses, cohort, num_clients, round=1):
    """A round in which these clients told their losses, in this order."""
    disclosed = tuple(Disclosed(k, "local_loss", "loss", 1, None) for k in losses)
    answers = {"local_loss": losses}
    return RoundResult(round, tuple(cohort), (), {}, Ledger(), {}, num_clients, disclosed=disclosed, answers=answers)


def learnt(selector, mixture, losses, cohort=(0, 1)):
    server = {"mixture": torch.tensor(mixture, dtype=torch.float64)}
    result = told(losses, cohort, len(mixture))
    return selector.observe(server, result, [], rng.stream(0, "selector-learns", 1))["mixture"].tolist()


# Draws


def test_the_cohort_is_drawn_by_the_mixture(server):
    run, mixture, expected = server(agnostic(), 4, 2, answers={"local_loss": [1.0] * 4}), [0.1, 0.5, 0.3, 0.1], {}
    run.state = {"mixture": torch.tensor(mixture, dtype=torch.float64)}
    for first, second in itertools.permutations(range(4), 2):
        expected[first, second] = mixture[first] * mixture[second] / (1 - mixture[first])
    drawn = Counter(tuple(run.select(round)) for round in range(1, 2501))
    assert chisquare([drawn[pair] for pair in expected], [2500 * p for p in expected.values()]).pvalue > 1e-4


def test_clients_without_weight_come_last_by_lot(server):
    run = server(agnostic(), 4, 2, answers={"local_loss": [1.0] * 4})
    run.state = {"mixture": torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)}
    assert {tuple(run.select(round)) for round in range(1, 60)} == {(2, 0), (2, 1), (2, 3)}


def test_those_asked_are_drawn_uniformly_whatever_the_mixture(server):
    run = server(agnostic(asked=2), 4, 1, answers={"local_loss": [1.0] * 4})
    run.state = {"mixture": torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)}
    for round in range(1, 1501):
        run.select(round)
    pairs = Counter(tuple(sorted(asked)) for _, asked in run.asked)
    assert chisquare([pairs[pair] for pair in itertools.combinations(range(4), 2)]).pvalue > 1e-4


# The weights


def test_the_step_is_unbiased():
    """Over every draw of m of K: the losses less their mean. Steps are too small for the projection to cut."""
    losses, mixture = np.array([0.3, 2.0, 1.1, 0.4, 0.9]), [0.2] * 5
    for number in (2, 3, 5):
        steps = [
            np.array(learnt(agnostic(step=0.01, asked=number), mixture, {k: losses[k] for k in drawn})) - mixture
            for drawn in itertools.combinations(range(5), number)
        ]
        assert np.mean(steps, axis=0) == pytest.approx(0.01 * (losses - losses.mean()), abs=1e-12)


def test_with_everybody_asked_the_weights_are_those_of_the_aggregator(tiny_federation):
    """Both in one federation, where each asks for the losses of all."""
    federation = tiny_federation(
        matrices=MATRICES, selector=agnostic(step=0.7), aggregator=AgnosticFL(local_loss=LocalLoss(), step=0.7), cohort_size=5
    )
    for _ in range(4):
        federation.run_round()
        ours, theirs = federation.state.selector["mixture"], federation.state.aggregator["mixture"]
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    assert ours.max() > 0.21


def test_only_those_drawn_to_be_asked_count(tiny_federation):
    """An aggregator that asks the cohort for losses too changes nothing of what the selector learns from a round."""
    found = []
    for aggregator in (None, QFedAvg(local_loss=LocalLoss(), lr=0.1)):
        federation = tiny_federation(matrices=MATRICES, selector=agnostic(), aggregator=aggregator, cohort_size=2)
        result = federation.run_round()
        found.append((result.cohort, federation.state.selector["mixture"].tolist()))
        assert len(result.disclosed) >= 2
    assert found[0] == found[1]
    assert sorted(found[0][1])[2] == pytest.approx(0.2, abs=0.05)


def test_losses_that_are_not_finite_do_not_count_and_are_told(caplog):
    with caplog.at_level(logging.WARNING):
        mixture = learnt(agnostic(asked=4), [0.25] * 4, {0: 1.0, 1: nan, 2: 2.0, 3: inf})
    assert caplog.messages == ["Round 1: the losses of 2 of 4 clients are not finite and do not count: clients 1, 3."]
    assert mixture == learnt(agnostic(asked=2), [0.25] * 4, {0: 1.0, 2: 2.0})
    assert learnt(agnostic(asked=2), [0.25] * 4, {0: 1.0, 2: nan}) == [0.25] * 4, "of one loss alone nothing is learnt"


def test_the_model_ends_where_the_worst_losses_are_alike(server):
    """F_k = h_k / 2 (w - c_k)^2: the first two are the worst, alike at w = 20 / 3, where weights 2 / 3 and 1 / 3 hold it."""
    h, c = np.array([1.0, 4.0, 1.0, 1.0]), np.array([0.0, 10.0, 3.0, 5.0])
    losses = [0.0] * 4
    run = server(agnostic(step=5e-4, asked=2), 4, 1, answers={"local_loss": losses})
    w, path, mixtures = 0.0, [], []
    for round in range(1, 2501):
        losses[:] = (h / 2 * (w - c) ** 2).tolist()
        cohort = run.select(round)
        result = told({k: losses[k] for k in run.asked[-1][1]}, cohort, 4, round)
        run.state = run.selector.observe(run.state, result, [], rng.stream(0, "selector-learns", round))
        w -= 0.01 * np.mean([h[k] * (w - c[k]) for k in cohort])
        path.append(w)
        mixtures.append(run.state["mixture"].numpy())
    assert np.mean(path[800:]) == pytest.approx(20 / 3, abs=0.1)
    assert np.mean(mixtures[800:], axis=0) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.05)


@pytest.mark.parametrize("wrong", [{"step": -0.1}, {"step": nan}, {"asked": 1}])
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=f"^Expected `{next(iter(wrong))}`"):
        agnostic(**wrong)
