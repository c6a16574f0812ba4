"""FairGrad: the server's gradient and the clients' step against algorithm 2 of F3's paper, written down once more."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.unfairness import _factors
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.fair_grad import FairGrad, FairGradObjective
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.selectors.all import AllSelector


def linear():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2, dtype=torch.float64))


class Doubled(nn.Module):
    """A linear model of inputs in double precision."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x.double())


def unfairness(losses, y, a, measure):
    """Group by group, as the authors' code does for two groups."""
    gaps = [
        (losses[(y == c) & (a == 0)].mean() - losses[(y == c) & (a == 1)].mean()).abs()
        for c in ((1,) if measure == "equal_opportunity" else (0, 1))
    ]
    return max(gaps)


@pytest.mark.parametrize("measure", ["equalized_odds", "equal_opportunity"])
def test_a_round_of_one_step_is_algorithm_2(measure, tiny_federation):
    """theta_k = phi - eta (beta g_k + (1 - beta) G), and phi their mean by samples."""
    objective = FairGradObjective(Doubled(), optimizer=partial(torch.optim.SGD, lr=0.1))
    run = tiny_federation(
        aggregator=FairGrad(beta=0.7, measure=measure),
        objective=objective,
        selector=AllSelector(),
        local=LocalTraining(unit="steps", amount=1, batch_size=100),
    )
    clients = run.engine.clients
    samples = run.find(ServerEvaluation).server_data.samples
    before, model = run.state.model, Doubled()

    def gradient(indices, of):
        model.load_state_dict(before)
        batch = clients.dataset.batch(indices)
        losses = functional.cross_entropy(model(batch.x), batch.y, reduction="none")
        return dict(zip(before, torch.autograd.grad(of(losses, batch), list(model.parameters())), strict=True))

    G = gradient(samples, lambda losses, batch: unfairness(losses, batch.y, batch.a, measure))
    assert max(float(tensor.abs().max()) for tensor in G.values()) > 1e-3
    sizes = [len(indices) for indices in clients.partition.indices]
    local = [gradient(indices, lambda losses, batch: losses.mean()) for indices in clients.partition.indices]
    assert run.run_round().metrics["server/samples"] == 2 * len(samples)
    for name, tensor in run.state.model.items():
        g = sum(size * one[name] for size, one in zip(sizes, local, strict=True)) / sum(sizes)
        torch.testing.assert_close(tensor, before[name] - 0.1 * (0.7 * g + 0.3 * G[name]))


def test_of_several_groups_the_two_furthest_apart_count_and_a_class_with_one_group_does_not():
    losses = np.array([1.0, 3.0, 8.0, 2.0, 4.0, 50.0])
    positive = np.array([True, True, True, True, True, False])
    a = np.array([0, 0, 1, 2, 2, 0])  # means 2, 8, 3 of the positive class
    assert _factors(losses, positive, a, "equalized_odds").tolist() == [-0.5, -0.5, 1.0, 0.0, 0.0, 0.0]
    assert _factors(losses, ~positive, a, "equal_opportunity").tolist() == [0.0] * 6


def test_a_beta_of_one_is_fedavg_bit_for_bit_and_finds_no_gradient(tiny_federation):
    idle = tiny_federation(aggregator=FairGrad(beta=1.0), objective=FairGradObjective(Doubled()))
    plain = tiny_federation(aggregator=FedAvg(weighting="samples"), objective=ClassificationObjective(Doubled()))
    ours, theirs = (run.run_round() for run in (idle, plain))
    assert ours.ledger == theirs.ledger
    assert "server/samples" not in ours.metrics
    assert state.digest(idle.state.model) == state.digest(plain.state.model)


def test_clients_come_closer_to_fair_on_the_servers_samples_than_with_fedavg(tiny_federation):
    gaps = []
    for beta in (1.0, 0.2):
        objective = FairGradObjective(Doubled(), optimizer=partial(torch.optim.SGD, lr=0.2))
        run = tiny_federation(aggregator=FairGrad(beta=beta), objective=objective, rounds=30)
        run.fit()
        model = Doubled()
        model.load_state_dict(run.state.model)
        batch = run.engine.clients.dataset.batch(run.find(ServerEvaluation).server_data.samples)
        losses = functional.cross_entropy(model(batch.x), batch.y, reduction="none").detach()
        gaps.append(float(unfairness(losses, batch.y, batch.a, "equalized_odds")))
    assert gaps[1] < gaps[0] / 2


@pytest.mark.parametrize("bad", [{"beta": -0.1}, {"beta": 1.1}, {"measure": "demographic_parity"}, {"positive_class": -1}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        FairGrad(**bad)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method=fair_grad", "server_data=none"], "the server has no samples: choose server_data=validation"),
        (["selector=uniform", "objective=fair_grad"], "objective=fair_grad requires"),
    ],
)
def test_what_it_cannot_do_without_is_said(overrides, sentence, job_of, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        build(job_of("debug=smoke", "callbacks=[]", "logger=[]", *overrides), tmp_path)
