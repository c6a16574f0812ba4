"""FedNova on parabolas, with clients that take unequal numbers of steps.

Client k holds n_k copies of its centre c_k and takes a step on each, so that every gradient is h_k (w - c_k) and its steps are
tau_k = n_k. With e = w - c_k and the velocity v, a step of SGD with momentum rho is the linear map

    v <- rho v + h e,  e <- e - eta v,        M(h) = [[1 - eta h, -eta rho], [h, rho]],

so tau steps shrink e by r = (M^tau)_00, which is (1 - eta h)^tau without momentum. A proximal term mu turns h into h + mu and
c_k into (h c_k + mu w) / (h + mu).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.aggregators.fednova import FedNova
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective

ETA = 0.05
STEPS = np.array([1, 3, 7])
CURVATURES = np.array([2.0, 1.0, 4.0])
CENTRES = np.array([[2.0, 9.0], [30.0, 0.0], [11.0, 16.0]])
START = np.array([20.0, -3.0])


class Offset(nn.Module):
    """Return how far the point is from each sample."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.tensor(START))

    def forward(self, x):
        return self.point - x.flatten(1)


def objective(*, eta=ETA, rho=0.0, mu=0.0):
    return ClassificationObjective(
        Offset(),
        loss=lambda offsets, batch: (batch.y / 2 * offsets.square().sum(dim=1)).mean(),
        correction=ProximalCorrection(mu=mu),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=eta, momentum=rho),
    )


@pytest.fixture
def clients(points):
    return points(*((int(h), [c] * tau) for h, c, tau in zip(CURVATURES, CENTRES, STEPS, strict=True)))


def shrinkage(h, tau, eta, rho):
    step = np.array([[1 - eta * h, -eta * rho], [h, rho]])
    return np.linalg.matrix_power(step, tau)[0, 0]


def updates_at(w, *, rho=0.0, mu=0.0):
    """Return every client's local minus global point, shape (K, 2)."""
    deltas = []
    for h, c, tau in zip(CURVATURES, CENTRES, STEPS, strict=True):
        pulled = (h * c + mu * w) / (h + mu)
        deltas.append((shrinkage(h + mu, tau, ETA, rho) - 1) * (w - pulled))
    return np.array(deltas)


def step_weights(rho, mu):
    """Wang et al., section 4: the l1 norms of a_k."""
    if mu:
        return (1 - (1 - ETA * mu) ** STEPS) / (ETA * mu)
    return (STEPS - rho * (1 - rho**STEPS) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize(("rho", "mu", "tau_eff"), [(0, 0, "step_weights"), (0.9, 0, "step_weights"), (0, 3, "step_weights"),
                                                    (0, 3, "steps"), (0, 0, "steps")])  # fmt: skip
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_rounds_follow_their_closed_form(rho, mu, tau_eff, weighting, clients, federate):
    """w <- w + tau_eff sum_k p_k Delta_k / ||a_k||_1, without server momentum."""
    aggregator = FedNova(momentum=0.0, server_lr=1.0, tau_eff=tau_eff, weighting=weighting)
    federation = federate(objective(rho=rho, mu=mu), clients, steps=None, aggregator=aggregator)
    shares = np.ones(3) / 3 if weighting == "equal" else STEPS / STEPS.sum()
    norms = step_weights(rho, mu)
    effective = shares @ (norms if tau_eff == "step_weights" else STEPS)
    w = START.copy()
    for _ in range(4):
        federation.run_round()
        w = w + effective * (shares / norms) @ updates_at(w, rho=rho, mu=mu)
        assert federation.state.model["point"].numpy() == pytest.approx(w, abs=1e-11)


def test_server_momentum_is_the_heavy_ball_on_the_normalised_average(clients, federate):
    beta, server_lr = 0.9, 0.5
    federation = federate(objective(), clients, steps=None, aggregator=FedNova(momentum=beta, server_lr=server_lr))
    w, m = START.copy(), np.zeros(2)
    for _ in range(6):
        federation.run_round()
        m = beta * m + STEPS.mean() * (updates_at(w) / STEPS[:, None]).mean(axis=0)
        w = w + server_lr * m
        assert federation.state.model["point"].numpy() == pytest.approx(w, abs=1e-11)


@pytest.mark.parametrize(("eta", "close"), [(1e-2, 0.1), (1e-4, 1e-3)])
def test_fedavg_is_drawn_to_those_who_take_more_steps_and_fednova_is_not(eta, close, points, federate):
    """Two clients of one curvature, 1 and 9 steps a round, equal weights: the optimum is midway between their centres.

    For small steps an update is nearly -eta tau_k h (w - c_k), so FedAvg settles at a tenth and nine tenths of the centres,
    however small eta is; what is left of FedNova's error is drift within a round, which vanishes with eta.
    """
    steps, centres = np.array([1, 9]), np.array([[0.0, 100.0], [200.0, 50.0]])
    data = points(*((1, [c] * tau) for c, tau in zip(centres, steps, strict=True)))
    gains = 1 - (1 - eta) ** steps
    optimum, span = centres.mean(axis=0), np.linalg.norm(centres[1] - centres[0])
    for aggregator, pulls in ((FedAvg(), gains), (FedNova(momentum=0.0, server_lr=1.0), gains / steps)):
        federation = federate(objective(eta=eta), data, steps=None, aggregator=aggregator)
        settled = pulls @ centres / pulls.sum()
        federation.restore(replace(federation.state, model={"point": torch.tensor(settled)}))
        federation.run_round()
        assert federation.state.model["point"].numpy() == pytest.approx(settled, abs=1e-10), "a fixed point"
        bias = np.linalg.norm(settled - optimum) / span
        assert bias == pytest.approx(0.4, abs=close) if isinstance(aggregator, FedAvg) else bias < close
        federation.restore(replace(federation.state, model={"point": torch.tensor(optimum)}))
        federation.run_round()
        moved = np.linalg.norm(federation.state.model["point"].numpy() - optimum) / (eta * span)
        assert moved > 1.5 if isinstance(aggregator, FedAvg) else moved < 10 * close, "the optimum does not hold FedAvg"


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize(("beta", "server_lr"), [(0.0, 1.0), (0.95, 0.1)])
def test_with_equal_steps_it_is_fedavg_with_and_without_momentum(steps, weighting, beta, server_lr, clients, federate):
    settings = {"momentum": beta, "server_lr": server_lr, "weighting": weighting}
    plain = FedAvg(weighting=weighting) if beta == 0 else FedAvgM(**settings)
    ours, theirs = (
        federate(objective(rho=0.9), clients, steps=steps, aggregator=aggregator) for aggregator in (FedNova(**settings), plain)
    )
    for _ in range(4):
        ours.run_round()
        theirs.run_round()
        assert ours.state.model["point"].numpy() == pytest.approx(theirs.state.model["point"].numpy(), abs=1e-11)
