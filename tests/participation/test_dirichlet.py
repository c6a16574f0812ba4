"""Skewed participation: the distribution of its probabilities, what is drawn by them, and by whom."""

import math
from collections import Counter
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from fedfacet import rng
from fedfacet.compatibility import check_pairs
from fedfacet.errors import ConfigError
from fedfacet.participation import DirichletParticipation
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.probe_fairness import ProbeFairnessSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Answer, SelectionContext


def generator(seed=0):
    return np.random.default_rng(seed)


def probabilities(participation, num_clients, seed=0):
    logarithms = participation.log_weights(num_clients, generator(seed))
    weights = np.exp(logarithms - logarithms.max())
    return weights / weights.sum()


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 10.0])
def test_probabilities_are_dirichlet(gamma):
    """A component of Dir(gamma 1_K) is Beta(gamma, (K - 1) gamma); 2,000 draws, by seed or by round."""
    K = 4
    for settings in (
        [({"seed": seed}, 0) for seed in range(2_000)],
        [({"redrawn": True}, round) for round in range(2_000)],
    ):
        drawn = [probabilities(DirichletParticipation(gamma=gamma, **more), K, seed)[1] for more, seed in settings]
        assert kstest(drawn, "beta", (gamma, (K - 1) * gamma)).pvalue > 1e-3


def test_probabilities_stay_unless_they_are_redrawn():
    fixed, redrawn = (DirichletParticipation(redrawn=redrawn) for redrawn in (False, True))
    assert (probabilities(fixed, 9, 1) == probabilities(fixed, 9, 2)).all()
    assert (probabilities(redrawn, 9, 1) != probabilities(redrawn, 9, 2)).any()
    assert (probabilities(fixed, 9) != probabilities(DirichletParticipation(seed=1), 9)).any()


@given(st.floats(1e-9, 1e9), st.integers(1, 30), st.integers(0, 9))
def test_every_gamma_gives_finite_weights_and_as_many_clients_as_asked_for(gamma, num_clients, seed):
    participation = DirichletParticipation(gamma=gamma, available_fraction=0.5)
    assert np.isfinite(participation.log_weights(num_clients, generator(seed))).all()
    available = participation.available(num_clients, generator(seed))
    assert len(available) == max(1, round(0.5 * num_clients))


def successive(weights, cohort):
    """The probability of drawing clients in just this order, without replacement."""
    left, product = 1.0, 1.0
    for client_id in cohort:
        product *= weights[client_id] / left
        left -= weights[client_id]
    return product


def test_the_available_are_drawn_without_replacement_in_proportion():
    participation = DirichletParticipation(gamma=1.0, available_fraction=0.5, seed=3)
    weights = probabilities(participation, 4)
    drawn = Counter(participation.available(4, generator(seed)) for seed in range(4_000))
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    expected = [4_000 * sum(successive(weights, order) for order in permutations(pair)) for pair in pairs]
    assert chisquare([drawn[pair] for pair in pairs], expected).pvalue > 1e-3


def test_small_gammas_make_few_clients_take_part():
    shares = []
    for gamma in (0.01, 0.5, 10.0):
        participation = DirichletParticipation(gamma=gamma, available_fraction=0.1)
        counts = Counter(k for round in range(200) for k in participation.available(100, generator(round)))
        shares.append(sum(count for _, count in counts.most_common(10)) / 2_000)
    assert shares[0] > 0.95
    assert shares[0] > shares[1] > shares[2] > 0.1


def test_redrawn_probabilities_even_out():
    participation = DirichletParticipation(gamma=0.01, available_fraction=0.1, redrawn=True)
    counts = Counter(k for round in range(1_000) for k in participation.available(50, generator(round)))
    assert len(counts) == 50
    assert max(counts.values()) < 2 * min(counts.values())


def context(participation, round, num_clients=4):
    weights = participation.log_weights(num_clients, rng.stream(0, "participation-weights", round))
    return SelectionContext(
        round, num_clients, 1, 1, tuple(range(num_clients)), {}, rng.stream(0, "selection", round), None, log_weights=weights
    )


def test_with_weights_everybody_is_there_and_the_uniform_selector_draws_by_them():
    participation = DirichletParticipation(gamma=1.0, mode="weights", seed=3)
    assert participation.available(4, generator()) == (0, 1, 2, 3)
    drawn = Counter(UniformSelector().select({}, context(participation, round))[0] for round in range(3_000))
    assert chisquare([drawn[k] for k in range(4)], 3_000 * probabilities(participation, 4)).pvalue > 1e-3


def test_weights_are_looked_up_by_client_also_where_some_are_away():
    log_weights = np.array([0.0, -1e4, 0.0, 1e4, 0.0])
    selection = SelectionContext(1, 5, 2, 2, (1, 3, 4), {}, generator(), None, log_weights=log_weights)
    assert UniformSelector().select({}, selection) == [3, 4]
    assert rng.draw(generator(), selection.available, 3, log_weights) == [3, 4, 1]


def test_candidates_of_probe_fairness_are_drawn_by_weights(tiny_federation):
    heavy = SimpleNamespace(answers=[])

    class Norms:
        name, needs_model, starts_training, floats_down = "probe_norm", False, False, 0
        kind, reads, epsilon = "norm", frozenset("xy"), None

        def answer(self, context):
            heavy.answers.append(context.client_id)
            return Answer(1.0, floats_up=1, samples=0)

    participation = DirichletParticipation(gamma=1e-3, mode="weights", seed=1)
    federation = tiny_federation(
        rounds=10,
        cohort_size=1,
        participation=participation,
        selector=ProbeFairnessSelector(probe=Norms(), candidate_factor=1, max_gap=None),
    )
    federation.fit()
    assert Counter(heavy.answers).most_common(1)[0] == (int(np.argmax(probabilities(participation, 4))), 10)


def test_a_federation_runs_with_either_mode_and_twice_the_same(tiny_federation):
    for mode in ("available", "weights"):
        for redrawn in (False, True):
            cohorts = [
                [
                    federation.run_round().cohort
                    for federation in [
                        tiny_federation(participation=DirichletParticipation(mode=mode, redrawn=redrawn, gamma=5.0))
                    ]
                    for _ in range(8)
                ]
                for _ in range(2)
            ]
            assert cohorts[0] == cohorts[1]
            assert len(set(cohorts[0])) > 1


def test_a_selector_that_would_ignore_the_weights_is_refused():
    def check(selector, **settings):
        parts = {"selector": selector, "participation": DirichletParticipation(**settings)}
        check_pairs(parts, {"selector": "some", "participation": "dirichlet"})

    with pytest.raises(ConfigError, match="provides 'selection/weighted_draws', which participation=dirichlet requires"):
        check(AllSelector(), mode="weights")
    check(AllSelector())
    check(UniformSelector(), mode="weights")
    check(UniformSelector())


def test_everybody_finishes():
    assert DirichletParticipation().outcome(3, generator) == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gamma": 0.0}, r"`participation\.gamma` in \(0, 1e9\], but got 0"),
        ({"gamma": math.nan}, "`participation.gamma`"),
        ({"mode": "weight"}, "'available' or 'weights', but got 'weight'"),
        ({"available_fraction": 0.0}, r"`participation\.available_fraction` in \(0, 1\], but got 0"),
        ({"available_fraction": 1.5}, r"but got 1\.5"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        DirichletParticipation(**settings)
