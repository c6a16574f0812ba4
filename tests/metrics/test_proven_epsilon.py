"""The upper bound on epsilon: closed forms, and Opacus' accountant against these where it is installed."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.integrate import quad
from scipy.stats import norm

from fedfacet.errors import ConfigError
from fedfacet.metrics.proven_epsilon import Mechanism, by_renyi, composed_epsilon, proven_epsilon


def delta_of(epsilon, mu):
    """The hockey-stick divergence of two unit normals at distance mu, by integration."""
    bound = epsilon / mu + mu / 2  # where the densities' ratio is e^epsilon
    return quad(lambda x: norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), bound, bound + 40, epsabs=1e-14, limit=200)[0]


@pytest.mark.parametrize("steps", [1, 10, 400])
@pytest.mark.parametrize("noise_multiplier", [0.8, 2.0, 10.0])
def test_without_sampling_it_is_exact(noise_multiplier, steps):
    mu = math.sqrt(steps) / noise_multiplier
    for delta in (1e-2, 1e-5, 1e-8):
        epsilon = proven_epsilon(noise_multiplier, 1.0, steps, delta)
        if epsilon < 30:  # beyond, integrating a difference of tiny numbers is no oracle
            assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-4)
            assert delta_of(epsilon + 0.01, mu) < delta


def test_known_values_and_limits():
    """Balle and Wang's sigma for (1, 1e-5) is 3.730; the classical formula needs 4.845."""
    assert proven_epsilon(3.7304, 1.0, 1, 1e-5) == pytest.approx(1.0, abs=2e-4)
    assert proven_epsilon(math.sqrt(2 * math.log(1.25e5)), 1.0, 1, 1e-5) < 1.0
    assert proven_epsilon(1.0, 1.0, 0, 1e-5) == proven_epsilon(0.0, 0.5, 0, 1e-5) == 0.0
    assert proven_epsilon(0.0, 1.0, 1, 1e-5) == proven_epsilon(0.0, 0.1, 7, 1e-5) == math.inf
    assert proven_epsilon(1e9, 1.0, 1, 1e-5) == 0.0
    assert 1e5 < proven_epsilon(1e-3, 1.0, 1, 1e-5) < 1e6
    assert proven_epsilon(2.0, 1.0, 4, 1e-5) == pytest.approx(proven_epsilon(1.0, 1.0, 1, 1e-5))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"noise_multiplier": -1.0}, "`noise_multiplier`"),
        ({"noise_multiplier": math.nan}, "`noise_multiplier`"),
        ({"noise_multiplier": math.inf}, "`noise_multiplier`"),
        ({"sampling_rate": 0.0}, "`sampling_rate`"),
        ({"sampling_rate": 1.5}, "`sampling_rate`"),
        ({"steps": -1}, "`steps`"),
        ({"delta": 0.0}, "`delta`"),
        ({"delta": 1.0}, "`delta`"),
    ],
)
def test_values_out_of_range_are_refused(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        proven_epsilon(**{"noise_multiplier": 1.0, "sampling_rate": 1.0, "steps": 1, "delta": 1e-5, **changed})


def test_without_opacus_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)

    with pytest.raises(ConfigError, match=r'^Expected the package opacus for .*pip install "fedfacet\[privacy\]"`'):
        proven_epsilon(1.0, 0.5, 1, 1e-5)
    assert proven_epsilon(1.0, 1.0, 1, 1e-5) > 0


@pytest.mark.parametrize("steps", [1, 30, 1000])
@pytest.mark.parametrize("noise_multiplier", [0.8, 2.0, 10.0, 100.0])
def test_the_accountant_is_an_upper_bound_near_the_exact_value(noise_multiplier, steps):
    for delta in (1e-3, 1e-5, 1e-8):
        exact, bound = proven_epsilon(noise_multiplier, 1.0, steps, delta), by_renyi(noise_multiplier, 1.0, steps, delta)
        assert exact <= bound <= 1.25 * exact + 0.05


def test_one_step_on_a_sampled_batch_against_an_integral():
    """The exact delta of N(0) against (1 - q) N(0) + q N(1), in both directions, at the epsilon that is claimed."""

    def densities(x, q, sigma):
        return norm.pdf(x, 0, sigma), (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)

    for q, sigma in ((0.01, 1.0), (0.1, 0.7), (0.5, 2.0)):
        epsilon = proven_epsilon(sigma, q, 1, 1e-4)
        x = np.linspace(-60 * sigma, 60 * sigma, 200_001)
        without, with_ = densities(x, q, sigma)
        for one, other in ((with_, without), (without, with_)):
            exact = np.maximum(one - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0])
            assert exact <= 1e-4
        assert epsilon < proven_epsilon(sigma, 1.0, 1, 1e-4)


def test_more_steps_more_sampling_and_less_noise_cost_more():
    usual = proven_epsilon(1.0, 0.05, 100, 1e-5)
    assert 0 < usual < proven_epsilon(1.0, 0.05, 200, 1e-5)
    assert usual < proven_epsilon(1.0, 0.1, 100, 1e-5)
    assert usual < proven_epsilon(0.9, 0.05, 100, 1e-5)
    assert usual < proven_epsilon(1.0, 0.05, 100, 1e-6)
    # Abadi et al. (2016), section 5: q = 0.01, sigma = 4, 10,000 steps, delta = 1e-5: 1.26 by their moments accountant.
    assert proven_epsilon(4.0, 0.01, 10_000, 1e-5) < 1.26
    assert proven_epsilon(4.0, 0.01, 10_000, 1e-5) > 0.8


@pytest.mark.parametrize("rate", [1e-5, 0.3, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (0.5, 0.9)), 0.9999])
def test_extreme_settings_have_finite_bounds(rate):
    for noise_multiplier in (0.1, 1.0, 1e3):
        assert 0 <= proven_epsilon(noise_multiplier, rate, 1000, 1e-5) < 1e6


# Several mechanisms


def test_what_is_not_sampled_is_one_gaussian_mechanism():
    """Whatever the order: mu squared adds up, and what tells nothing costs nothing."""
    parts = [Mechanism(2.0, 1.0, 3), Mechanism(math.inf, 1.0, 9), Mechanism(0.8, 1.0, 1)]
    mu = math.sqrt(3 / 4 + 1 / 0.64)
    for order in (parts, parts[::-1]):
        assert composed_epsilon(order, 1e-5) == pytest.approx(proven_epsilon(1 / mu, 1.0, 1, 1e-5))
    assert composed_epsilon([*parts, Mechanism(0.0, 0.5, 1)], 1e-5) == math.inf
    assert composed_epsilon([Mechanism(math.inf, 1.0, 4)], 1e-5) == composed_epsilon([], 1e-5) == 0.0


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("history", [[(1.0, 0.1, 100), (3.0, 1.0, 1)], [(2.0, 0.02, 50), (4.0, 0.3, 9)]])
def test_sampled_and_other_mechanisms_together_are_those_of_opacus(history, accountant):
    oracle = {"rdp": RDPAccountant, "prv": PRVAccountant}[accountant]()
    oracle.history = history
    found = composed_epsilon([Mechanism(*part) for part in history], 1e-5, accountant)
    with np.errstate(divide="ignore"):
        assert found == pytest.approx(oracle.get_epsilon(1e-5), rel=0.01)
    alone = max(composed_epsilon([Mechanism(*part)], 1e-5, accountant) for part in history)
    assert alone <= found <= sum(composed_epsilon([Mechanism(*part)], 1e-5 / len(history), accountant) for part in history)


def test_random_variables_of_what_is_not_sampled_are_near_the_exact_value():
    """As they are composed with what is."""
    for noise_multiplier, steps in ((1.0, 4), (3.0, 1)):
        oracle = PRVAccountant()
        oracle.history = [(noise_multiplier, 1.0, steps)]
        exact = proven_epsilon(noise_multiplier, 1.0, steps, 1e-5)
        with np.errstate(divide="ignore"):
            assert exact <= oracle.get_epsilon(1e-5) <= exact + 0.025


@given(st.floats(0.6, 4.0), st.floats(0.005, 0.9), st.integers(1, 300))
@settings(max_examples=3)
def test_random_variables_are_tighter_than_divergences_and_never_below_the_truth(noise_multiplier, rate, steps):
    """The truth of one step on all samples, with a probability, is below what many steps cost."""
    parts = [Mechanism(noise_multiplier, rate, steps)]
    rdp, prv = (composed_epsilon(parts, 1e-5, accountant) for accountant in ("rdp", "prv"))
    assert prv <= rdp <= composed_epsilon([Mechanism(noise_multiplier, 1.0, steps)], 1e-5) * 1.25 + 0.05
    # One step alone, by the integral of above: (1 - q) N(0) + q N(1) against N(0).
    x = np.linspace(-40 * noise_multiplier, 40 * noise_multiplier, 400_001)
    without = norm.pdf(x, 0, noise_multiplier)
    with_ = (1 - rate) * without + rate * norm.pdf(x, 1, noise_multiplier)
    assert np.maximum(with_ - math.exp(prv) * without, 0).sum() * (x[1] - x[0]) <= 1e-5
