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
from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.privacy.central import CentralDP
from fedfacet.selectors.poisson import PoissonSelector
from fedfacet.types import ClientUpdate, SelectionContext

CONF = Path(__file__).parents[2] / "conf"
SHAPES = {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, 2, dtype=torch.float64)}


def update(vector, client_id=0):
    whole = torch.tensor(vector, dtype=torch.float64)
    return ClientUpdate(client_id, {"a": whole[:3], "b": whole[3:].view(2, 2)}, {}, 5, 1, 1.0, {})


def released(privacy, vectors, *, expected=1, seed=0, round=1):
    """The noised mean of some updates, shape (7,)."""
    found = privacy.released(map(update, vectors), SHAPES, expected=expected, seed=seed, round=round)
    return np.concatenate([found.delta[name].numpy().ravel() for name in ("a", "b")])


def test_updates_are_clipped_summed_noised_and_divided_by_the_expected_number():
    vectors = np.random.default_rng(0).normal(size=(4, 7)) * np.array([[0.01], [1.0], [5.0], [0.1]])
    privacy = CentralDP(clip_norm=0.7, noise_multiplier=2.0)
    clipped = [vector * min(1.0, 0.7 / np.linalg.norm(vector)) for vector in vectors]
    draw = rng.stream(5, "central-noise", 9)
    noise = 1.4 * np.concatenate([draw.standard_normal((3,)), draw.standard_normal((2, 2)).ravel()])
    found = released(privacy, vectors, expected=3, seed=5, round=9)
    assert found == pytest.approx((np.sum(clipped, axis=0) + noise) / 3, abs=1e-12)


@given(
    others=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=7, max_size=7), max_size=4),
    one=st.lists(st.floats(-1e6, 1e6), min_size=7, max_size=7),
)
def test_a_client_moves_the_sum_by_the_norm_at_most_and_changes_no_noise(others, one):
    privacy = CentralDP(clip_norm=0.5, noise_multiplier=3.0)
    there, not_there = (released(privacy, vectors) for vectors in ([*others, one], others))
    assert np.linalg.norm(there - not_there) <= 0.5 * (1 + 1e-9)


def test_noise_has_the_stated_spread_and_is_another_one_in_every_round():
    privacy = CentralDP(clip_norm=0.5, noise_multiplier=3.0)
    noise = np.concatenate([released(privacy, [], expected=2, round=round) for round in range(1, 400)])
    assert noise.std() == pytest.approx(0.75, rel=0.06)
    assert abs(noise.mean()) < 4 * 0.75 / math.sqrt(len(noise))
    assert len(np.unique(noise)) == len(noise)


def test_the_noise_follows_from_the_key_and_a_run_goes_on_with_its_own_alone(tmp_path):
    keys = [tmp_path / "one", tmp_path / "other"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 16)
    none, one, again, other = (CentralDP(noise_key_file=str(key) if key else None) for key in (None, keys[0], *keys))
    assert np.array_equal(released(one, []), released(again, []))
    assert not np.array_equal(released(one, []), released(one, [], seed=1))
    assert len({released(privacy, []).tobytes() for privacy in (none, one, other)}) == 3
    again.check(one.init())
    for saved, goes_on in ((one, none), (one, other), (none, one)):
        with pytest.raises(CheckpointError, match="Expected the noise key that the run began with"):
            goes_on.check(saved.init())
    assert not any(key.read_bytes().hex() in f"{one.init()}{one}" for key in keys)
    keys[0].write_bytes(b"short")
    with pytest.raises(ConfigError, match="Expected at least 16 bytes"):
        CentralDP(noise_key_file=str(keys[0]))
    with pytest.raises(ConfigError, match="No such file"):
        CentralDP(noise_key_file=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "changed",
    [
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf},
        {"delta": 0.0},
    ],
)
def test_values_out_of_range_are_refused(changed):
    with pytest.raises(ValueError, match=f"privacy.{next(iter(changed))}"):
        CentralDP(**changed)


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
    federation = private(f"selector={selector}", "federation.rounds=4", "privacy.noise_multiplier=1.5")
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
    assert "privacy/epsilon" not in private("privacy.noise_multiplier=0").run_round().metrics


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


@pytest.mark.parametrize("aggregator", ["fedavg", "fedavgm", "fedadam"])
def test_without_noise_and_within_the_norm_it_is_the_aggregator_alone(private, aggregator):
    """With everybody there, as many as are expected; but for the order of rounding."""
    options = (f"aggregator={aggregator}", "aggregator.weighting=equal", "selector=uniform", "federation.rounds=2")
    clipped = private(*options, "privacy.clip_norm=1e9", "privacy.noise_multiplier=0").fit().model
    alone = private(*options, "privacy=none").fit().model
    for name, tensor in alone.items():
        torch.testing.assert_close(clipped[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model=resnet8"], "running statistics"),
        (["method=scaffold", "privacy=central"], "aggregator=scaffold looks at each"),
        (["aggregator=krum"], "aggregator=krum looks at each"),
        (["aggregator.weighting=samples"], "weights them by samples"),
        (["scheduler=plateau", "scheduler.metric=train/loss"], "the scheduler follows train/loss"),
    ],
)
def test_other_ways_into_the_model_are_refused(private, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        private(*overrides)


def test_a_run_that_was_stopped_goes_on_alike_and_not_without_its_key(private, tmp_path):
    (tmp_path / "key").write_bytes(bytes(range(16)))
    options = ("federation.rounds=3", f"privacy.noise_key_file={tmp_path / 'key'}")
    whole = private(*options).fit()
    first = private(*options)
    first.run_round()
    again = private(*options)
    again.restore(first.state)
    assert state.digest(again.fit().model) == state.digest(whole.model)
    with pytest.raises(CheckpointError, match="noise key"):
        private("federation.rounds=3").restore(first.state)
