"""FedGFT: the cohort's gradient is that of the loss plus the global penalty, and rates come together."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.group_performance import GroupScores
from fedfacet.config import compose_job
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.losses import group_penalty
from fedfacet.methods.fedgft import POSITIVE, SLOPES, FedGFT, FedGFTObjective
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective, cross_entropy
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Batch, Broadcast, ClientStart, Facts

UNEVEN = ([[12, 1], [2, 5]], [[3, 3], [1, 1]], [[1, 9], [8, 2]])
"""Clients of 20, 8 and 20 samples."""


class Linear64(nn.Module):
    """Logits of two classes, in double precision."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 2, dtype=torch.float64)

    def forward(self, x):
        return self.head(x.flatten(1).double())


class OfTheAttribute(nn.Module):
    """Logits (0, w h + b) of how bright the lower half is, which the attribute decides and the class does not."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1, dtype=torch.float64)

    def forward(self, x):
        return nn.functional.pad(self.line(x[:, 0, 2:].double().mean(dim=(1, 2))[:, None]), (1, 0))


def full_batch(tiny_federation, aggregator, kind, *, model=Linear64, lr=1.0, **settings):
    """Return a federation of uneven clients that all take one step on all their samples."""
    torch.manual_seed(3)
    objective = kind(model(), optimizer=partial(torch.optim.SGD, lr=lr))
    local = LocalTraining(unit="steps", amount=1, batch_size=64)
    settings = {"matrices": UNEVEN, "selector": AllSelector(), "cohort_size": 3, **settings}
    return tiny_federation(aggregator=aggregator, objective=objective, local=local, **settings)


def gft(**settings):
    positive_class = settings.pop("positive_class", 1)
    return FedGFT(group_scores=GroupScores(positive_class=positive_class), **settings)


@pytest.mark.parametrize("rate", ["tpr", "selection"])
@pytest.mark.parametrize("positive_class", [0, 1])
def test_a_round_is_a_step_down_the_loss_plus_the_penalty_on_everybodys_rates(rate, positive_class, tiny_federation):
    """Against autograd of lambda F^2 over all samples pooled, whoever has them."""
    run = full_batch(tiny_federation, gft(strength=300.0, rate=rate, positive_class=positive_class), FedGFTObjective)
    clients, before = run.engine.clients, run.state.model
    pool = clients.dataset.batch(np.concatenate(clients.partition.indices))
    weight, bias = (before[f"head.{name}"].clone().requires_grad_() for name in ("weight", "bias"))
    logits = pool.x.flatten(1).double() @ weight.T + bias
    logs = torch.log_softmax(logits, dim=1)
    rates = [
        logs.exp()[:, positive_class][(pool.a == a) & ((pool.y == positive_class) | (rate == "selection"))].mean()
        for a in (0, 1)
    ]
    loss = -logs[torch.arange(len(pool.y)), pool.y].mean() + 300.0 * (rates[1] - rates[0]) ** 2
    gradients = torch.autograd.grad(loss, [weight, bias])
    plain = torch.autograd.grad(cross_entropy(pool.x.flatten(1).double() @ weight.T + bias, pool), [weight, bias])
    run.run_round()
    for name, gradient, without in zip(("weight", "bias"), gradients, plain, strict=True):
        moved = before[f"head.{name}"] - run.state.model[f"head.{name}"]
        torch.testing.assert_close(moved, gradient, rtol=1e-5, atol=1e-6)  # factors cross in single precision
        assert (gradient - without).abs().max() > 1e-4


def test_the_same_for_one_client_is_the_penalty_on_its_batch(tiny_federation):
    run = full_batch(tiny_federation, gft(strength=1.5), FedGFTObjective, matrices=UNEVEN[:1], cohort_size=1)
    kind = partial(ClassificationObjective, loss=partial(group_penalty, strength=1.5))
    other = full_batch(tiny_federation, FedAvg(), kind, matrices=UNEVEN[:1], cohort_size=1)
    for _ in range(2):
        run.run_round()
        other.run_round()
    torch.testing.assert_close(run.state.model, other.state.model, rtol=1e-5, atol=1e-7)


def test_loss_and_gradient_of_a_client_are_those_of_the_formula():
    torch.manual_seed(0)
    x, y, a = torch.randn(10, 4).double(), torch.tensor([0, 1, 2, 1, 0] * 2), torch.tensor([0, 1] * 5)
    slopes = torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.0, 3.0]])
    objective = FedGFTObjective(nn.Linear(4, 3, dtype=torch.float64))
    sent = {SLOPES: slopes, POSITIVE: torch.tensor(2)}
    objective.on_client_start(ClientStart(Broadcast({}, sent), {}, 1, 0.1))
    ours = objective.training_step((x, y, a), 0)
    weight, bias = (tensor.detach().clone().requires_grad_() for tensor in objective.model.parameters())
    terms = []
    for row, label, group in zip(x, y.tolist(), a.tolist(), strict=True):
        p = torch.softmax(weight @ row + bias, dim=0)
        terms.append(-p[label].log() + slopes[label, group].item() * p[2])
    theirs = sum(terms) / 10
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    found = torch.autograd.grad(ours, list(objective.model.parameters()))
    for gradient, expected in zip(found, torch.autograd.grad(theirs, [weight, bias]), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


# The server

REPORTS = {0: [[[1.0, 2.0], [3.0, 1.0]], [[4.0, 6.0], [5.0, 2.0]]], 2: [[[1.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [5.0, 6.0]]]}


def slopes_of(reports, **settings):
    aggregator = gft(**settings)
    server = aggregator.prepare(aggregator.init(Facts(3, {}, ())), reports)
    sent = aggregator.broadcast(server, {}, 1).extras
    assert sent[SLOPES].dtype == torch.float32
    return sent[SLOPES].tolist()


def test_factors_are_as_worked_out_by_hand():
    """Rates 4/10 and 2/8 of classes 1, F = -0.15; parts 10/30 and 8/30; 2 lambda F over these."""
    up, down = 2 * 0.15 / (10 / 30), -2 * 0.15 / (8 / 30)
    assert slopes_of(REPORTS, strength=1.0) == [[0, 0], pytest.approx([up, down])]
    assert slopes_of(REPORTS, strength=2.0) == [[0, 0], pytest.approx([2 * up, 2 * down])]
    gap = 4 / 14 - 6 / 16
    row = pytest.approx([-2 * gap / (16 / 30), 2 * gap / (14 / 30)])
    assert slopes_of(REPORTS, strength=1.0, rate="selection") == [row, row]


def test_the_default_is_the_authors_loss_with_their_gamma_of_20():
    """Their client's term is gamma F (p / b of group 0 - p / d of group 1), b and d the groups' parts of all samples."""
    gap = 4 / 10 - 2 / 8
    assert slopes_of(REPORTS)[1] == pytest.approx([20 * gap / (10 / 30), -20 * gap / (8 / 30)])


def test_of_more_than_two_groups_each_is_drawn_to_their_mean():
    counts = [[5.0, 5.0, 0.0, 5.0], [10.0, 10.0, 0.0, 20.0]]
    reports = {0: [[[0.0] * 4, [9.0, 6.0, 0.0, 6.0]], counts]}
    mean = (0.9 + 0.6 + 0.3) / 3
    expected = [4 * (rate - mean) / (n / 55) for rate, n in ((0.9, 10), (0.6, 10), (0.3, 20))]
    assert slopes_of(reports, strength=1.0)[1] == pytest.approx([*expected[:2], 0.0, expected[2]], abs=1e-6)


@pytest.mark.parametrize("absent", [[1], [0, 1]])
def test_without_two_groups_that_have_a_rate_there_is_no_penalty(absent):
    counts = [[5.0, 5.0], [0.0 if a in absent else 4.0 for a in (0, 1)]]
    reports = {0: [[[1.0, 1.0], [0.0 if a in absent else 3.0 for a in (0, 1)]], counts]}
    assert slopes_of(reports) == [[0.0, 0.0], [0.0, 0.0]]


def test_before_anybody_has_reported_the_model_alone_is_sent():
    aggregator = gft()
    server = aggregator.init(Facts(3, {}, ()))
    assert aggregator.prepare(server, {}) is server
    assert aggregator.broadcast(server, {}, 0).extras == {}


@pytest.mark.parametrize("bad", [{"rate": "fpr"}, {"strength": -1}, {"strength": float("nan")}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        gft(**bad)


# Rounds


@pytest.fixture
def federation(tiny_federation):
    """Return a function: aggregator, objective -> a federation of four clients, two a round."""

    def make(aggregator, kind=FedGFTObjective, rounds=3, lr=0.1, **settings):
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        objective = kind(model, optimizer=partial(torch.optim.SGD, lr=lr, momentum=0.9))
        return tiny_federation(aggregator=aggregator, objective=objective, rounds=rounds, **settings)

    return make


def test_a_strength_of_zero_is_fedavg_bit_for_bit_and_asks_nothing(federation):
    idle = federation(gft(strength=0.0))
    plain = federation(FedAvg(weighting="samples"), ClassificationObjective)
    ledgers = [run.run_round().ledger for run in (idle, plain)]
    assert ledgers[0] == ledgers[1]
    assert state.digest(idle.fit().model) == state.digest(plain.fit().model)


def test_where_the_cohort_lacks_a_group_a_round_is_fedavgs_bit_for_bit(federation):
    matrices = ([[3, 4], [5, 0]], [[4, 2], [6, 0]])
    ours = federation(gft(), matrices=matrices)
    plain = federation(FedAvg(weighting="samples"), ClassificationObjective, matrices=matrices)
    assert state.digest(ours.fit().model) == state.digest(plain.fit().model)


def test_the_cohort_is_asked_every_round_and_factors_cross_with_the_model(federation):
    run = federation(gft())
    for _ in range(2):
        result = run.run_round()
        assert sorted(one.client_id for one in result.disclosed) == sorted(result.cohort)
        assert {one.kind for one in result.disclosed} == {"group_performance"}
        assert result.ledger.query_floats_up == 2 * 8
        assert result.ledger.floats_down == 2 * (state.num_floats(run.state.model) + 4)


@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_what_is_not_finite_never_reaches_the_factors(policy, federation):
    run = federation(gft(), lr=1e30, on_bad_update=policy)
    with pytest.raises(BadUpdateError):
        run.fit()
    assert run.state.aggregator["slopes"].isfinite().all()


@pytest.mark.parametrize("rate", ["tpr", pytest.param("selection", marks=pytest.mark.slow)])
def test_rates_come_together_where_fedavgs_stay_apart(rate, tiny_federation):
    """The more so the stronger the penalty; three of 18 samples are of class 1 in group 0, and 11 of 13 in group 1."""
    apart = {"matrices": ([[12, 1], [2, 5]], [[3, 1], [1, 6]]), "cohort_size": 2, "model": OfTheAttribute}
    gaps = []
    for strength in (0.0, 1.0, 30.0):
        aggregator = gft(strength=strength, rate=rate)
        run = full_batch(tiny_federation, aggregator, FedGFTObjective, lr=0.1, rounds=250, **apart)
        run.fit()
        clients = run.engine.clients
        pool: Batch = clients.dataset.batch(np.concatenate(clients.partition.indices))
        with torch.no_grad():
            scores = clients.program.module(pool.x).softmax(dim=1)[:, 1]
        first, second = (scores[(pool.a == a) & ((pool.y == 1) | (rate == "selection"))].mean() for a in (0, 1))
        gaps.append(abs(float(second - first)))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < gaps[0] / 5


# The options


@pytest.fixture
def built(tmp_path):
    def make(*overrides):
        config, _ = compose_job("train", ["experiment=digits_gsc", "callbacks=[]", *overrides])
        config.logger = {}
        return build(config, tmp_path)

    return make


def test_the_option_is_the_method(built):
    made = built("method=fedgft")
    assert type(made.engine.clients.objective) is FedGFTObjective
    assert (made.aggregator.strength, made.aggregator.rate, made.aggregator.group_scores.positive_class) == (10.0, "tpr", 1)


@pytest.mark.parametrize("half", ["aggregator=fedgft", "objective=fedgft"])
def test_half_a_method_is_refused(half, built):
    with pytest.raises(ConfigError, match=rf"'fedgft/\w+', which {half} \w+, but there is none"):
        built("selector=uniform", half)


def test_a_class_that_there_is_not_is_refused(federation):
    with pytest.raises(ConfigError, match=r"^Expected `positive_class` to be one of the 2 classes, from 0, but got 2"):
        federation(gft(positive_class=2)).run_round()
