"""Central differential privacy: the mechanism by its formula, epsilon by another accountant, and what would go past both."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.stats import norm

from fedfacet import rng, state
from fedfacet.aggregators.dp_fedavg import DPFedAvg
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.selectors.poisson import PoissonSelector
from fedfacet.types import ClientUpdate, Facts, SelectionContext

CONF = Path(__file__).parents[2] / "conf"
MODEL = {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, 2, dtype=torch.float64), "steps": torch.tensor(7)}
FACTS = Facts(num_clients=10, model=MODEL, parameters=("a", "b"))


def update(vector, client_id=0):
    whole = torch.tensor(vector, dtype=torch.float64)
    return ClientUpdate(client_id, {"a": whole[:3], "b": whole[3:].view(2, 2)}, {}, 5, 1, 1.0, {})


def moved(aggregator, vectors, rounds=1):
    """How far the last of some equal rounds moves the model, shape (7,)."""
    server, before, after = aggregator.init(FACTS), MODEL, MODEL
    for _ in range(rounds):
        before = after
        server, after = aggregator.aggregate(server, before, map(update, vectors))
    assert after["steps"] == 7
    return np.concatenate([(after[name] - before[name]).numpy().ravel() for name in ("a", "b")])


def test_updates_are_clipped_summed_noised_and_divided_by_the_expected_number():
    vectors = np.random.default_rng(0).normal(size=(4, 7)) * np.array([[0.01], [1.0], [5.0], [0.1]])
    aggregator = DPFedAvg(clip_norm=0.7, noise_multiplier=2.0, expected_clients=3, seed=5)
    clipped = [vector * min(1.0, 0.7 / np.linalg.norm(vector)) for vector in vectors]
    draw = rng.stream(5, "central-noise", 1)
    noise = 1.4 * np.concatenate([draw.standard_normal((3,)), draw.standard_normal((2, 2)).ravel()])
    assert moved(aggregator, vectors) == pytest.approx((np.sum(clipped, axis=0) + noise) / 3, abs=1e-12)


def test_without_noise_and_within_the_norm_it_is_fedavg():
    vectors = np.random.default_rng(1).normal(size=(3, 7))
    plain = moved(DPFedAvg(clip_norm=1e9, noise_multiplier=0.0, expected_clients=3), vectors)
    _, averaged = FedAvg().aggregate({}, MODEL, map(update, vectors))
    assert plain == pytest.approx(np.concatenate([averaged[name].numpy().ravel() for name in ("a", "b")]), abs=1e-12)


@given(
    others=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=7, max_size=7), max_size=4),
    one=st.lists(st.floats(-1e6, 1e6), min_size=7, max_size=7),
)
def test_a_client_moves_the_sum_by_the_norm_at_most_and_changes_no_noise(others, one):
    aggregator = DPFedAvg(clip_norm=0.5, noise_multiplier=3.0, expected_clients=2)
    there, not_there = (2 * moved(aggregator, vectors) for vectors in ([*others, one], others))
    assert np.linalg.norm(there - not_there) <= 0.5 * (1 + 1e-9)


def test_noise_has_the_stated_spread_and_is_another_one_in_every_round():
    aggregator = DPFedAvg(clip_norm=0.5, noise_multiplier=3.0, expected_clients=2)
    noise = np.concatenate([moved(aggregator, [], rounds) for rounds in range(1, 200)])
    assert noise.std() == pytest.approx(0.75, rel=0.06)
    assert abs(noise.mean()) < 4 * 0.75 / math.sqrt(len(noise))
    assert len(np.unique(noise)) == len(noise)


def test_the_noise_follows_from_the_key_and_a_run_goes_on_with_its_own_alone(tmp_path):
    keys = [tmp_path / "one", tmp_path / "other"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 16)
    open_, one, again, other = (
        DPFedAvg(noise_key_file=str(key) if key else None, seed=3) for key in (None, keys[0], keys[0], keys[1])
    )
    assert np.array_equal(moved(one, []), moved(again, []))
    assert len({moved(aggregator, []).tobytes() for aggregator in (open_, one, other)}) == 3
    server, _ = one.aggregate(one.init(FACTS), MODEL, ())
    assert again.aggregate(server, MODEL, ())[0]["rounds"] == 2
    for wrong in (open_, other):
        with pytest.raises(ConfigError, match="Expected the noise key that the run began with"):
            wrong.aggregate(server, MODEL, ())
    assert not any(key.read_bytes().hex() in str(server) for key in keys)
    keys[0].write_bytes(b"short")
    with pytest.raises(ConfigError, match="Expected at least 16 bytes"):
        DPFedAvg(noise_key_file=str(keys[0]))
    with pytest.raises(ConfigError, match="No such file"):
        DPFedAvg(noise_key_file=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "changed",
    [
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf},
        {"expected_clients": 0},
        {"delta": 0.0},
        {"weighting": "samples"},
        {"buffers": "average"},
    ],
)
def test_values_out_of_range_are_refused(changed):
    with pytest.raises(ValueError, match=f"aggregator.{next(iter(changed))}"):
        DPFedAvg(**changed)


# Poisson sampling


def test_every_client_is_drawn_by_itself():
    def context(round):
        everybody, draw = tuple(range(20)), rng.stream(0, "selection", round)
        return SelectionContext(round, 20, 5, 5, everybody, {}, draw, ask=None)

    cohorts = [PoissonSelector().select({}, context(round)) for round in range(1, 2001)]
    taken = np.zeros((2000, 20), dtype=bool)
    for row, cohort in zip(taken, cohorts, strict=True):
        row[cohort] = True
    assert taken.mean() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / taken.size))
    sizes = taken.sum(axis=1)
    assert sizes.var() == pytest.approx(20 * 0.25 * 0.75, rel=0.15), "a binomial number of clients, as of independent draws"
    assert sizes.min() == 0, "somebody need not be there"


# In a federation


@pytest.fixture
def private(tmp_path):
    """Return a function: overrides -> a small federation under DP-FedAvg."""

    def make(*overrides):
        job, _ = compose_job("train", ["debug=smoke", "method=dp_fedavg", "callbacks=evaluate", *overrides])
        return build(job, tmp_path / "run")

    return make


@pytest.mark.parametrize(("selector", "rate"), [("poisson", 3 / 15), ("uniform", 1.0)])
def test_epsilon_is_that_of_another_accountant(private, selector, rate):
    federation = private(f"selector={selector}", "federation.rounds=4", "aggregator.noise_multiplier=1.5")
    rate = rate if rate == 1 else federation.cohort_size / federation.num_clients
    found = [federation.run_round().metrics["privacy/epsilon"] for _ in range(4)]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1]
    if rate < 1:
        accountant = RDPAccountant()
        accountant.history = [(1.5, rate, 4)]
        assert found[-1] == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=0.01)
    else:  # one Gaussian mechanism, whose delta is known (Balle and Wang, theorem 8)
        mu, epsilon = 2 / 1.5, found[-1]
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-3)


def test_a_round_without_anybody_adds_noise_alone(private):
    federation = private("federation.cohort_size=1", "federation.rounds=30", "selector=poisson", "threads=1")
    while True:
        before = federation.state.model
        result = federation.run_round()
        if not result.cohort:
            break
    change = state.subtract(federation.state.model, before)
    assert all(tensor.abs().sum() > 0 for name, tensor in change.items() if name in federation.facts.parameters)
    assert result.metrics["privacy/epsilon"] > 0


def test_clipping_alone_proves_nothing(private):
    assert "privacy/epsilon" not in private("aggregator.noise_multiplier=0").run_round().metrics


def test_only_selectors_that_know_nothing_of_clients_go_with_it(private):
    taken, said = set(), {}
    for file in sorted((CONF / "selector").glob("*.yaml")):
        more = ["devices=lognormal"] if "Needs devices" in file.read_text() else []
        more += ["server_data=validation"] if file.stem in ("fl_cir", "s_fedavg", "cbim", "favor") else []
        try:
            private(f"selector={file.stem}", *more)
            taken.add(file.stem)
        except ConfigError as error:
            said[file.stem] = str(error)
    assert {name for name in said if "epsilon covers" not in said[name]} <= {"lag"}, said  # which lacks its aggregator first
    assert taken == {"all", "poisson", "uniform"}, "whoever is added here knows nothing of clients' data"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model=resnet8"], "running statistics"),
        (["correction=scaffold"], "scaffold"),
        (["scheduler=plateau", "scheduler.metric=train/loss"], "the scheduler follows train/loss"),
    ],
)
def test_other_ways_into_the_model_are_refused(private, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        private(*overrides)
