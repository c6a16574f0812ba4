"""Central differential privacy: the mechanism by its formula, epsilon by another accountant, and what would go past both."""

import json
import math
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.assembly import federate
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.config import compose_job
from fedfacet.data.digits import Digits
from fedfacet.data.federated import deal
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.metrics.audited_epsilon import audited_epsilon
from fedfacet.metrics.proven_epsilon import Mechanism, composed_epsilon, proven_epsilon
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.partitioners.synthetic import IIDPartitioner
from fedfacet.privacy.central import CentralDP
from fedfacet.selectors.poisson import PoissonSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.types import ClientUpdate, SelectionContext

CONF = Path(__file__).parents[2] / "conf"
SHAPES = {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, 2, dtype=torch.float64)}


def update(vector, client_id=0):
    whole = torch.tensor(vector, dtype=torch.float64)
    return ClientUpdate(client_id, {"a": whole[:3], "b": whole[3:].view(2, 2)}, {}, 5, 1, 1.0, {})


def released(privacy, vectors, *, expected=1, seed=0, round=1):
    """The noised mean of some updates, shape (7,)."""
    planned = {"expected": expected, "seed": seed, "round": round}
    _, found = privacy.released(privacy.init(), map(update, vectors), SHAPES, **planned)
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


# Adaptive clipping


def test_the_norm_goes_to_the_quantile_by_the_paper_s_update():
    """Without noise, on norms 1, 2, ..., 10 of ten clients: C exp(-lr (share within C - gamma)), round by round."""
    privacy = CentralDP(clip_norm=0.1, noise_multiplier=0.0, target_quantile=0.75, clip_norm_lr=0.2)
    vectors = [[float(number), *[0.0] * 6] for number in range(1, 11)]
    server, expected = privacy.init(), 0.1
    for round in range(1, 120):
        clip_norm, planned = server["clip_norm"], {"expected": 10, "seed": 0, "round": round}
        server, found = privacy.released(server, map(update, vectors), SHAPES, **planned)
        assert found.delta["a"][0] == pytest.approx(sum(min(number, clip_norm) for number in range(1, 11)) / 10)
        expected *= math.exp(-0.2 * (sum(number <= expected for number in range(1, 11)) / 10 - 0.75))
        assert server["clip_norm"] == pytest.approx(expected)
    assert 7 <= server["clip_norm"] < 8.2, "three quarters of the norms are at most 7.5"


def test_sum_and_count_together_have_the_noise_of_one_mechanism():
    """Theorem 1 of Andrew et al.: at twice its standard deviation the count is a mechanism of its own beside the sum."""
    privacy = CentralDP(noise_multiplier=1.5, clip_norm=0.5, target_quantile=0.5, clipped_count_stddev=1.0)
    multiplier, stddev = privacy.noise(10)
    assert multiplier == pytest.approx((1.5**-2 - (2 * 1.0) ** -2) ** -0.5)
    both = [Mechanism(multiplier, 1.0, 7), Mechanism(2 * stddev, 1.0, 7)]
    assert composed_epsilon(both, 1e-5) == pytest.approx(proven_epsilon(1.5, 1.0, 7, 1e-5))
    rounds, unclipped = [], []
    for round in range(1, 400):
        server, found = privacy.released(privacy.init(), [], SHAPES, expected=4, seed=0, round=round)
        rounds.append(np.concatenate([found.delta[name].numpy().ravel() for name in ("a", "b")]))
        unclipped.append(0.5 - math.log(server["clip_norm"] / 0.5) / 0.2)
    assert np.std(rounds) == pytest.approx(multiplier * 0.5 / 4, rel=0.06)
    assert np.mean(unclipped) == pytest.approx(0.5, abs=4 * 0.25 / 20), "nobody is half a client within the norm"
    assert np.std(unclipped) == pytest.approx(stddev / 4, rel=0.12)
    with pytest.raises(ConfigError, match=r"Expected cohorts of more than 15 clients"):
        CentralDP(noise_multiplier=1.5, target_quantile=0.5).noise(15)
    assert CentralDP(noise_multiplier=1.5, target_quantile=0.5).noise(16)[1] == 0.8
    with pytest.raises(ValueError, match=r"larger than half of `privacy\.noise_multiplier`"):
        CentralDP(noise_multiplier=1.5, target_quantile=0.5, clipped_count_stddev=0.75)


# What an attack refutes


@pytest.mark.parametrize("part", [1.0, 0.05], ids=["honest", "with a twentieth of the noise"])
def test_an_attack_on_the_sum_refutes_no_more_than_is_proven_and_would_if_noise_were_missing(part):
    """Coins decide which of 1,000 clients are there, each with an axis of its own; guesses are by what lies on the axis."""
    coins = rng.stream(0, "coins").random(1000) < 0.5
    shapes = {"a": torch.zeros(1000, dtype=torch.float64)}
    axes = 5 * torch.eye(1000, dtype=torch.float64)
    updates = (ClientUpdate(k, {"a": axes[k]}, {}, 5, 1, 1.0, {}) for k in np.flatnonzero(coins))
    privacy = CentralDP(noise_multiplier=part, clip_norm=2.0)
    _, found = privacy.released(privacy.init(), updates, shapes, expected=1, seed=0, round=1)
    right = int(((found.delta["a"].numpy() > 1.0) == coins).sum())
    refuted, proven = audited_epsilon(right, 1000, 1000, 1e-5), proven_epsilon(1.0, 1.0, 1, 1e-5)
    assert (0.5 < refuted <= proven) is (part == 1.0), (refuted, proven)


# In a federation


USUAL = ("debug=smoke", "method=dp_fedavg", "callbacks=evaluate")


@pytest.fixture
def private(tmp_path, job_of):
    """Return a function: overrides -> a small federation under DP-FedAvg."""
    return lambda *overrides: build(job_of(*USUAL, *overrides), tmp_path / "run")


@pytest.mark.parametrize(("selector", "rate"), [("poisson", 3 / 15), ("uniform", 1.0)])
def test_epsilon_is_that_of_another_accountant(private, selector, rate):
    federation = private(f"selector={selector}", "federation.rounds=2", "privacy.noise_multiplier=1.5")
    rate = rate if rate == 1 else federation.cohort_size / federation.num_clients
    found = [federation.run_round().metrics["privacy/epsilon"] for _ in range(2)]
    assert 0 < found[0] < found[1]
    if rate < 1:
        accountant = PRVAccountant()
        accountant.history = [(1.5, rate, 2)]
        assert found[-1] == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=0.01)
    else:  # one Gaussian mechanism, whose delta is known (Balle and Wang, theorem 8)
        mu, epsilon = math.sqrt(2) / 1.5, found[-1]
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-3)


def test_a_round_without_anybody_adds_noise_alone(private):
    options = ("federation.cohort_size=1", "selector=poisson", "privacy.accountant=rdp")
    federation = private(*options, "federation.rounds=30", "threads=1")
    while True:
        before = federation.state.model
        result = federation.run_round()
        if not result.cohort:
            break
    change = state.subtract(federation.state.model, before)
    assert all(tensor.abs().sum() > 0 for name, tensor in change.items() if name in federation.facts.parameters)
    assert result.metrics["privacy/epsilon"] > 0


def test_with_an_adaptive_norm_epsilon_is_the_same_and_a_resume_goes_on_with_the_norm(private):
    plain = private("federation.rounds=3").fit()
    options = ("federation.rounds=3", "privacy.target_quantile=0.5", "privacy.clipped_count_stddev=2")
    federation = private(*options)
    metrics, states = zip(*((federation.run_round().metrics, federation.state) for _ in range(3)), strict=True)
    norms = [round["privacy/clip_norm"] for round in metrics]
    assert norms[0] == 1.0
    assert len(set(norms)) == 3
    again = private(*options)
    again.restore(states[0])
    assert again.fit().slots["privacy"] == federation.state.slots["privacy"]
    assert state.digest(again.state.model) == state.digest(federation.state.model) != state.digest(plain.model)
    assert (
        metrics[-1]["privacy/epsilon"] == private("federation.rounds=3").find(DifferentialPrivacy).accounting.epsilons(plain)[0]
    )


def test_the_tighter_accountant_is_asked_where_a_round_is_measured(private):
    epsilons = {}
    for accountant in ("rdp", "prv"):
        federation = private(
            *("federation.rounds=3", f"privacy.accountant={accountant}", "callbacks.evaluate.every_n_rounds=2")
        )
        epsilons[accountant] = [federation.run_round().metrics["privacy/epsilon"] for _ in range(3)]
    assert [math.isnan(epsilon) for epsilon in epsilons["prv"]] == [True, False, False]
    assert all(0 < prv < rdp for prv, rdp in zip(epsilons["prv"][1:], epsilons["rdp"][1:], strict=True))


def test_clipping_alone_proves_nothing(private):
    assert "privacy/epsilon" not in private("privacy.noise_multiplier=0").run_round().metrics


def test_only_selectors_that_know_nothing_of_clients_go_with_it(job_of, tmp_path):
    taken, said = set(), {}
    for file in sorted((CONF / "selector").glob("*.yaml")):
        more = ["devices=lognormal"] if "Needs devices" in file.read_text() else []
        more += ["server_data=validation"] if file.stem in ("fl_cir", "s_fedavg", "cbim", "favor") else []
        job = job_of(*USUAL, *more)
        job.selector = OmegaConf.load(file)  # composing each job anew takes a while
        try:
            build(job, tmp_path / "run")
            taken.add(file.stem)
        except ConfigError as error:
            said[file.stem] = str(error)
    assert {name for name in said if "epsilon covers" not in said[name]} <= {"lag", "feddiverse", "fedrk"}, said
    for name in ("feddiverse", "fedrk"):
        assert "to go with privacy=central, but it takes all clients in its first rounds" in said[name]
    assert taken == {"all", "poisson", "round_robin", "uniform"}, "whoever is added here knows nothing of clients' data"


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


class _Looks(FedAvg):
    """Looks at each update, and says nothing of itself."""


class _Fixed(PoissonSelector):
    """Draws in a way of its own, and says nothing of itself."""

    def select(self, server, context):
        return list(context.available[: context.num_slots])


class _Curious(RoundRobinSelector):
    """Looks at losses, and inherits from one that does not."""

    def observe(self, server, result, updates, rng):
        return {"counts": server["counts"], "losses": [receipt.loss_sum for receipt in result.receipts]}


def parts(**chosen):
    """A federation of real objects under central noise."""
    data = deal(Digits().load(None), IIDPartitioner(num_clients=6))
    model = SmallCNN(data.dataset.num_classes, data.dataset.input_shape, width=4, hidden=8)
    local = LocalTraining(unit="steps", amount=1)
    return federate(data, model, local=local, cohort_size=3, privacy=CentralDP(), callbacks={}, **chosen)


def test_a_class_is_believed_what_it_says_itself_and_not_what_it_inherits():
    with pytest.raises(ConfigError, match="_Looks looks at each"):
        parts(aggregator=_Looks())
    with pytest.raises(ConfigError, match="_Curious learns from what clients send"):
        parts(selector=_Curious())
    accounts = [parts(selector=one).find(DifferentialPrivacy).accounting for one in (_Fixed(), PoissonSelector())]
    inherited, own = (account.rates for account in accounts)
    assert (inherited, own) == ([1.0], [0.5])


def test_the_key_is_read_once_draws_cohorts_too_and_is_written_nowhere(private, tmp_path, monkeypatch):
    key, reads = tmp_path / "key", []
    key.write_bytes(bytes(range(100, 132)))
    options = ("callbacks=default", "~callbacks.figures", "federation.rounds=4", f"privacy.noise_key_file={key}")
    job, _ = compose_job("train", ["debug=smoke", "method=dp_fedavg", *options])
    (tmp_path / "run").mkdir()
    content = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path) if path == key else None, content(path))[1])
    federation = build(job, tmp_path / "run")
    assert len(reads) == 1
    federation.fit()
    assert len(reads) == 1
    assert federation.state.participation_counts.tolist() != private("federation.rounds=4").fit().participation_counts.tolist()
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(files) > 5
    for secret in (content(key), content(key).hex().encode(), b64encode(content(key)), repr(content(key)).encode()):
        assert not [file for file in files if secret in content(file)]
    said = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert said["noise_key"] == "secret"
    assert said["says"].endswith("noise and sampling follow from a secret key.")


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
