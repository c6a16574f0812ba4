"""FFALM and FPFL: the client's loss against its formula, the multipliers by hand, and what the constraints do."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.config import compose_job
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.losses import group_penalty
from fedfacet.methods.fair_lagrangian import BETA, GAPS, MULTIPLIERS, FairLagrangian, FairLagrangianObjective
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective, cross_entropy
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Batch, Broadcast, ClientStart, ClientUpdate, Facts

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 1, 1, 0, 2, 1, 0, 1, 1, 2])
A = torch.tensor([0, 0, 1, 1, 0, 2, 2, 2, 1, 1, 0, 0])
FACTORS = {"ffalm": [-0.7], "fpfl": [0.4, 1.3, 0.2]}


def started(multipliers, beta, model=None):
    """Return an objective whose client has been sent these factors; three classes of four inputs unless a model is given."""
    torch.manual_seed(1)
    objective = FairLagrangianObjective(model or nn.Linear(4, 3, dtype=torch.float64))
    sent = {MULTIPLIERS: torch.tensor(multipliers, dtype=torch.float64), BETA: torch.tensor(beta, dtype=torch.float64)}
    objective.on_client_start(ClientStart(Broadcast({}, sent), {}, 1, 0.1))
    return objective


def lagrangian(weight, bias, x, y, a, multipliers, beta, variant):
    """Return the loss of a batch, sample by sample and group by group."""
    losses = [-torch.log_softmax(weight @ row + bias, dim=0)[label] for row, label in zip(x, y, strict=True)]
    mean = sum(losses) / len(losses)
    groups = {group: [loss for loss, own in zip(losses, a.tolist(), strict=True) if own == group] for group in range(3)}
    means = {group: sum(values) / len(values) for group, values in groups.items() if values}
    if variant == "ffalm":
        gaps = [(multipliers[0], means[0] - means[1])] if {0, 1} <= means.keys() else []
    else:
        gaps = [(multipliers[group], (mean - own) if mean > own else (own - mean)) for group, own in means.items()]
    return mean + sum(multiplier * gap + beta * gap * gap / 2 for multiplier, gap in gaps)


@pytest.mark.parametrize("variant", FACTORS)
@pytest.mark.parametrize("absent", [None, 0, 1, 2])
@pytest.mark.parametrize("beta", [0.0, 2.5])
def test_loss_and_gradient_are_those_of_the_formula(variant, absent, beta):
    """FFALM compares the first two groups; whoever holds others is refused before."""
    keep = (absent != A) & ((2 if variant == "ffalm" else 3) > A)
    x, y, a = X[keep], Y[keep], A[keep]
    objective = started(FACTORS[variant], beta)
    weight, bias = (tensor.detach().clone().requires_grad_() for tensor in objective.model.parameters())
    ours, theirs = objective.training_step((x, y, a), 0), lagrangian(weight, bias, x, y, a, FACTORS[variant], beta, variant)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    found = torch.autograd.grad(ours, list(objective.model.parameters()))
    for gradient, expected in zip(found, torch.autograd.grad(theirs, [weight, bias]), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_ffalms_square_is_the_penalty_on_losses():
    batch = Batch(X[A < 2], Y[A < 2], A[A < 2])
    objective = started([0.0], 3.0)
    logits = objective.model(batch.x)
    penalty = group_penalty(logits, batch, strength=1.5, rate="loss")
    assert objective.training_loss(logits, batch).item() == pytest.approx(penalty.item(), rel=1e-12)


@pytest.mark.parametrize("variant", FACTORS)
def test_factors_of_zero_are_the_cross_entropy_bit_for_bit(variant):
    objective = started([0.0] * len(FACTORS[variant]), 0.0)
    batch = Batch(X, Y, A)
    assert torch.equal(objective.training_step(batch, 0), cross_entropy(objective.model(X), batch))


def test_a_client_sends_its_gaps_over_all_its_samples_and_none_of_a_group_that_it_lacks():
    losses = torch.nn.functional.cross_entropy(started([0.0], 0.0).model(X), Y, reduction="none").detach()
    means = [float(losses[group == A].mean()) for group in range(3)]

    def sent(multipliers, keep):
        objective = started(multipliers, 0.0)
        with torch.no_grad():
            objective.after_steps([Batch(x, y, a) for x, y, a in zip(*(v[keep].split(4) for v in (X, Y, A)), strict=True)])
        extras, memory = objective.on_client_end(None)
        assert memory == {}
        assert list(extras) == [GAPS]
        assert extras[GAPS].dtype == torch.float32
        return extras[GAPS].tolist()

    assert sent([0.0], A >= 0) == pytest.approx([means[0] - means[1]], rel=1e-6)
    assert sent([0.0], A != 1) == [0.0]
    everything = float(losses.mean())
    assert sent([0.0] * 3, A >= 0) == pytest.approx([abs(everything - mean) for mean in means], rel=1e-6)
    without = float(losses[A != 2].mean())
    assert sent([0.0] * 3, A != 2) == pytest.approx([abs(without - means[0]), abs(without - means[1]), 0], rel=1e-6)


# The server


def updates_of(gaps, sizes=(1, 1)):
    zero = {"w": torch.zeros(1)}
    return [
        ClientUpdate(k, zero, {}, size, 1, 1.0, {}, extras={GAPS: torch.tensor(gap)})
        for k, (gap, size) in enumerate(zip(gaps, sizes, strict=True))
    ]


def test_multipliers_rise_as_worked_out_by_hand():
    """lambda_k = lambda + eta g_k: 1 + 2 * 0.25 = 1.5 and 1 - 2 * 0.5 = 0; a quarter and three quarters of them."""
    aggregator = FairLagrangian(beta=5.0, eta=2.0, growth=1.25, multiplier=1.0)
    model = {"w": torch.zeros(1)}
    server = aggregator.init(Facts(2, model, ("w",)))
    assert server == {"multipliers": torch.ones(1), "beta": 5.0, "eta": 2.0}
    server, _ = aggregator.aggregate(server, model, iter(updates_of([[0.25], [-0.5]], (10, 30))))
    assert server == {"multipliers": torch.tensor([0.375]).double(), "beta": 6.25, "eta": 1.6}
    server, _ = aggregator.aggregate(server, model, iter(updates_of([[0.5], [0.0]], (10, 30))))
    assert server["multipliers"].tolist() == pytest.approx([0.375 + 1.6 * 0.125])
    assert (server["beta"], server["eta"]) == (7.8125, 1.28)
    sent = aggregator.broadcast(server, model, 0)
    assert sent.model is model
    assert torch.equal(sent.extras[MULTIPLIERS], server["multipliers"])
    assert float(sent.extras[BETA]) == 7.8125


def test_fpfl_has_a_multiplier_for_each_group():
    aggregator = FairLagrangian(variant="fpfl", eta=2.0, growth=1.0, weighting="equal")
    model = {"w": torch.zeros(1)}
    facts = Facts(2, model, ("w",), num_attributes=3)
    assert aggregator.extras(facts)[GAPS].shape == (3,)
    changed = updates_of([[0.5, 0.0, 0.25], [0.5, 1.0, 0.0]], (10, 30))
    server, _ = aggregator.aggregate(aggregator.init(facts), model, iter(changed))
    assert server["multipliers"].tolist() == [1.0, 1.0, 0.25]
    assert (server["beta"], server["eta"]) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("variant", "number", "said"),
    [
        ("ffalm", 3, "choose aggregator=fpfl"),
        ("ffalm", 1, "which compares two groups"),
        ("fpfl", 1, "choose aggregator=fedavg"),
    ],
)
def test_data_of_another_number_of_groups_is_refused_before_the_first_round(variant, number, said):
    with pytest.raises(ConfigError, match=rf"^Expected data of two attribute values.*but got {number}: .*{said}|{said}"):
        FairLagrangian(variant=variant).init(Facts(2, {}, (), num_attributes=number))


@pytest.mark.parametrize(
    "bad", [{"variant": "alm"}, {"beta": -1}, {"eta": float("nan")}, {"growth": 0}, {"multiplier": float("inf")}]
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        FairLagrangian(**bad)


def test_another_loss_is_refused():
    with pytest.raises(ValueError, match="objective=fair_lagrangian"):
        FairLagrangianObjective(nn.Linear(4, 3), loss=group_penalty)


# Rounds


@pytest.fixture
def federation(tiny_federation):
    """Return a function: aggregator, objective -> a federation of four clients, two a round."""

    def make(aggregator, kind=FairLagrangianObjective, rounds=3, lr=0.1, **settings):
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        objective = kind(model, optimizer=partial(torch.optim.SGD, lr=lr, momentum=0.9))
        return tiny_federation(aggregator=aggregator, objective=objective, rounds=rounds, **settings)

    return make


@pytest.mark.parametrize("variant", FACTORS)
def test_without_any_factor_it_is_fedavg_bit_for_bit_and_sends_nothing_more(variant, federation):
    idle = federation(FairLagrangian(variant=variant, beta=0.0, eta=0.0))
    plain = federation(FedAvg(weighting="samples"), ClassificationObjective)
    ledgers = [run.run_round().ledger for run in (idle, plain)]
    assert ledgers[0] == ledgers[1]
    assert state.digest(idle.fit().model) == state.digest(plain.fit().model)


def test_without_squares_the_first_round_is_fedavgs_and_the_second_is_not(federation):
    runs = federation(FairLagrangian(beta=0.0)), federation(FedAvg(weighting="samples"), ClassificationObjective)
    digests = []
    for _ in range(2):
        for run in runs:
            run.run_round()
        digests.append([state.digest(run.state.model) for run in runs])
    assert digests[0][0] == digests[0][1]
    assert digests[1][0] != digests[1][1]


@pytest.mark.parametrize("variant", FACTORS)
def test_what_everybody_lacks_a_group_for_moves_no_multiplier(variant, federation):
    matrices = ([[6, 0], [2, 0]], [[2, 0], [6, 0]])
    ours = federation(FairLagrangian(variant=variant), matrices=matrices)
    ours.fit()
    assert state.all_finite(ours.state.model)
    known = ours.state.aggregator["multipliers"]
    assert known[1 if variant == "fpfl" else 0] == 0
    assert known.abs().max() < 1e-6, "and the only group has the loss of all"
    if variant == "ffalm":
        plain = federation(FedAvg(weighting="samples"), ClassificationObjective, matrices=matrices)
        torch.testing.assert_close(ours.state.model, plain.fit().model, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_what_is_not_finite_never_reaches_the_multipliers(policy, federation):
    """A client's loss overflows with such a learning rate, and with it the gap that it sends."""
    run = federation(FairLagrangian(), lr=1e30, on_bad_update=policy)
    with pytest.raises(BadUpdateError):
        run.fit()
    assert run.state.aggregator["multipliers"].isfinite().all()


class Slope(nn.Module):
    """The logits (0, w), whatever the input: a probability of class 1 for everybody."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([torch.zeros(len(x), dtype=torch.float64), self.w.expand(len(x))], dim=1)


@pytest.mark.parametrize(("variant", "eta"), [("ffalm", 0.5), ("fpfl", 0.05)])
def test_rounds_end_where_both_groups_lose_alike(variant, eta, tiny_federation):
    """Group 0 is of class 1 four times in five, group 1 once in three: the losses cross at w = 0, and there alone.

    l_0 = softplus(w) - 0.8 w and l_1 = softplus(w) - w / 3; FedAvg ends at the mean share, well above 0. FPFL's distances have
    a kink there, around which large multipliers have it jump.
    """
    matrices = ([[2, 4], [8, 2]],) * 2
    share = 10 / 16

    def run(aggregator, kind, rounds):
        local = LocalTraining(unit="steps", amount=1, batch_size=16)
        objective = kind(Slope(), optimizer=partial(torch.optim.SGD, lr=0.2))
        made = tiny_federation(
            aggregator=aggregator, objective=objective, matrices=matrices, local=local, rounds=rounds, selector=AllSelector()
        )
        made.fit()
        return float(made.state.model["w"]), made.state.aggregator

    plain, _ = run(FedAvg(), ClassificationObjective, 200)
    assert plain == pytest.approx(np.log(share / (1 - share)), rel=1e-3)
    ours, server = run(FairLagrangian(variant=variant, beta=2.0, eta=eta, growth=1.0), FairLagrangianObjective, 400)
    assert abs(ours) < plain / 20
    if variant == "ffalm":
        # There sigmoid(0) - share + lambda (1/3 - 0.8) = 0.
        assert float(server["multipliers"]) == pytest.approx((0.5 - share) / (0.8 - 1 / 3), rel=1e-2)


# The options


@pytest.fixture
def built(tmp_path):
    def make(*overrides):
        config, _ = compose_job("train", ["experiment=digits_gsc", "callbacks=[]", *overrides])
        config.logger = {}
        return build(config, tmp_path)

    return make


@pytest.mark.parametrize(("method", "variant"), [("ffalm", "ffalm"), ("fpfl", "fpfl")])
def test_the_option_is_the_method(method, variant, built):
    made = built(f"method={method}")
    assert type(made.engine.clients.objective) is FairLagrangianObjective
    aggregator = made.aggregator
    factors = aggregator.beta, aggregator.eta, aggregator.growth, aggregator.multiplier
    assert (aggregator.variant, factors) == (variant, (5.0, 2.0, 1.0, 0.0))


@pytest.mark.parametrize("half", ["aggregator=fair_lagrangian", "aggregator=fpfl", "objective=fair_lagrangian"])
def test_half_a_method_is_refused(half, built):
    with pytest.raises(ConfigError, match=rf"'fair_lagrangian/\w+', which {half} \w+, but there is none"):
        built("selector=uniform", half)


def test_clients_that_do_not_know_attributes_are_refused(built):
    with pytest.raises(ConfigError, match="for objective=fair_lagrangian, but under this"):
        built("method=ffalm", "disclosure=none")


def test_a_disclosure_that_keeps_groups_to_clients_is_held_to(built):
    with pytest.raises(ConfigError, match="objective=fair_lagrangian sends what is of kind group_performance"):
        built("method=ffalm", "disclosure=true_triplet")
