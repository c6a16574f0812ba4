"""FPFL under central noise: the release of the constraints' values by its formula, and epsilon by a closed form."""

import math

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from fedfacet import rng
from fedfacet.build import build
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.methods.fair_lagrangian import GAPS, FairLagrangian
from fedfacet.privacy.central import CentralDP
from fedfacet.types import ClientUpdate, Facts

SHAPES = {"w": torch.zeros(2, dtype=torch.float64)}
LIKE = torch.zeros(3, dtype=torch.float64)
NOISE = ("aggregator.max_norm=0.5", "aggregator.noise_multiplier=2")
SMALL = "privacy.clip_norm=0.01"
USUAL = ("debug=smoke", "callbacks=[]", "logger=[]", "method=fpfl", "privacy=central", "aggregator.weighting=equal")


def released(gaps, *, multiplier, round=1, expected=2):
    updates = [
        ClientUpdate(
            k,
            {"w": torch.ones(2, dtype=torch.float64)},
            {},
            1,
            1,
            1.0,
            {},
            extras={GAPS: torch.tensor(gap, dtype=torch.float64)},
        )
        for k, gap in enumerate(gaps)
    ]
    privacy = CentralDP(clip_norm=1.0, noise_multiplier=3.0)
    planned = {"expected": expected, "seed": 5, "round": round}
    return privacy.released(privacy.init(), iter(updates), SHAPES, {GAPS: (LIKE, 0.5, multiplier)}, **planned)[1]


def test_values_are_clipped_summed_noised_and_divided_by_the_expected_number():
    """(3, 4, 0) has the norm 5, and counts as (0.3, 0.4, 0); the other is within 0.5."""
    found = released([[3.0, 4.0, 0.0], [0.1, 0.0, -0.2]], multiplier=2.0, round=9)
    noise = 2.0 * 0.5 * rng.stream(5, "central-statistics", 9).standard_normal((3,))
    assert found.extras[GAPS].numpy() == pytest.approx((np.array([0.4, 0.4, -0.2]) + noise) / 2, abs=1e-12)
    moved = found.delta["w"] - released([], multiplier=2.0, round=9).delta["w"]
    assert moved.tolist() == pytest.approx([math.sqrt(0.5)] * 2), "the updates are clipped and noised as they were"


def test_the_noise_has_the_standard_deviation_z_times_b_over_m():
    noise = np.concatenate([released([], multiplier=4.0, round=round).extras[GAPS].numpy() for round in range(1, 500)])
    assert noise.std() == pytest.approx(4.0 * 0.5 / 2, rel=0.06)
    assert abs(noise.mean()) < 4 / math.sqrt(len(noise))


def test_the_multipliers_rise_by_the_noised_mean():
    """lambda + eta / m (sum + noise), whatever the clients: the mean is the only update."""
    aggregator = FairLagrangian(variant="fpfl", eta=2.0, weighting="equal", max_norm=0.5, noise_multiplier=2.0)
    facts = Facts(2, {"w": torch.zeros(2, dtype=torch.float64)}, ("w",), num_attributes=3)
    mean = released([[0.1, 0.0, 0.2]], multiplier=2.0)
    server, _ = aggregator.aggregate(aggregator.init(facts), facts.model, iter([mean]))
    assert torch.equal(server["multipliers"], 2.0 * mean.extras[GAPS])


@pytest.fixture
def private(tmp_path, job_of):
    return lambda *overrides: build(job_of(*USUAL, *overrides), tmp_path / "run")


def test_epsilon_is_that_of_one_gaussian_mechanism_over_both_releases(private):
    """mu^2 = T (1 / z^2 + 1 / z_g^2) with T = 2, z = 1.5 and z_g = 2; delta by theorem 8 of Balle and Wang."""
    federation = private(*NOISE, SMALL, "selector=uniform", "privacy.noise_multiplier=1.5", "federation.rounds=2")
    epsilon = [federation.run_round().metrics["privacy/epsilon"] for _ in range(2)][-1]
    mu = math.sqrt(2 * (1 / 1.5**2 + 1 / 2**2))
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    said = federation.find(DifferentialPrivacy).summary(federation.state)
    assert said["covers"] == ["models", f"the noised mean of `{GAPS}`"]
    assert f"the server's models and the noised mean of `{GAPS}`" in said["says"]
    assert federation.state.aggregator["multipliers"].abs().min() > 0


def test_both_sums_are_of_one_cohort_so_sampling_amplifies_them_together(private):
    federation = private(*NOISE, SMALL, "selector=poisson", "privacy.noise_multiplier=1.5")
    federation.run_round()
    accountant = PRVAccountant()
    joint = 1 / math.sqrt(1 / 1.5**2 + 1 / 2**2)
    accountant.history = [(joint, federation.cohort_size / federation.num_clients, 1)]
    found = federation.find(DifferentialPrivacy).accounting.epsilons(federation.state)[0]
    assert found == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=0.01)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), r"sends 'fair_lagrangian/gaps': give `aggregator.max_norm` and `aggregator.noise_multiplier`"),
        ((*NOISE, "aggregator.weighting=samples"), "choose equal"),
        ((*NOISE, "privacy=none"), "privacy is not central: choose privacy=central, or null"),
    ],
)
def test_what_would_go_past_the_noise_is_refused(overrides, sentence, private):
    with pytest.raises(ConfigError, match=sentence):
        private("selector=uniform", *overrides)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_norm": 1.0},
        {"noise_multiplier": 1.0},
        {"max_norm": 0.0, "noise_multiplier": 1.0},
        {"max_norm": 1.0, "noise_multiplier": 0.0},
    ],
)
def test_half_a_noise_is_refused(bad):
    with pytest.raises(ValueError, match=r"needs both|larger than 0"):
        FairLagrangian(**bad)
