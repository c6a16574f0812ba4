"""Clients whose loss is a parabola, so that every local step, round and fixed point is known in closed form.

Client k pays h_k / 2 * ||w - c_k||^2. A full-batch SGD step of size eta maps w - c_k to (1 - eta h_k) (w - c_k), so E of them
give

    w_k = c_k + (1 - eta h_k)^E (w - c_k),        Delta_k = w_k - w = -g_k (w - c_k),        g_k = 1 - (1 - eta h_k)^E.

With weights p_k that add up to 1, a round of FedAvg is w + sum_k p_k Delta_k; with g = sum_k p_k g_k it contracts by 1 - g to

    w* = sum_k p_k g_k c_k / g,

whereas the global loss is smallest at sum_k p_k h_k c_k / sum_k p_k h_k. The two agree for E = 1 (g_k = eta h_k) and drift
apart as E grows, until for E -> infinity (g_k -> 1) w* is the plain mean of the clients' own optima: client drift.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective

ETA = 0.1
START = np.array([20.0, -3.0])
CURVATURES = np.array([1.0, 4.0])
SAMPLES = ([[0, 4], [2, 8]], [[8, 1], [10, 0], [15, 2]])
CENTRES = np.array([np.mean(samples, axis=0) for samples in SAMPLES])


@pytest.fixture
def two_clients(points):
    return points(*zip(CURVATURES.astype(int), SAMPLES, strict=True))


def contraction(steps):
    return 1 - (1 - ETA * CURVATURES) ** steps


def fixed_point(steps, shares):
    gains = shares * contraction(steps)
    return gains @ CENTRES / gains.sum()


def optimum(shares):
    return shares * CURVATURES @ CENTRES / (shares @ CURVATURES)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_fedavg_follows_its_closed_form(steps, weighting, quadratic, two_clients, federate):
    shares = np.array([0.5, 0.5]) if weighting == "equal" else np.array([0.4, 0.6])
    federation = federate(quadratic(ETA), two_clients, steps=steps, aggregator=FedAvg(weighting=weighting))
    target, rate = fixed_point(steps, shares), 1 - shares @ contraction(steps)
    for round in range(1, 6):
        federation.run_round()
        expected = target + rate**round * (START - target)
        assert federation.state.model["point"].numpy() == pytest.approx(expected, abs=1e-12)


def test_client_drift_moves_the_fixed_point_away_from_the_optimum(quadratic, two_clients, federate):
    equal = np.array([0.5, 0.5])
    distances = {}
    for steps, rounds in ((1, 150), (5, 40), (200, 2)):
        federation = federate(quadratic(ETA), two_clients, steps=steps)
        for _ in range(rounds):
            federation.run_round()
        reached = federation.state.model["point"].numpy()
        assert reached == pytest.approx(fixed_point(steps, equal), abs=1e-9)
        distances[steps] = np.linalg.norm(reached - optimum(equal))
    assert distances[1] == pytest.approx(0, abs=1e-9)
    assert distances[5] > 0.1
    assert distances[200] == pytest.approx(np.linalg.norm(CENTRES.mean(axis=0) - optimum(equal)), abs=1e-6)
    assert distances[200] > distances[5]


def test_equal_and_sample_weights_aim_at_different_points(quadratic, points, federate):
    """With one local step and equal curvatures w* is the weighted mean of the centres: of clients or of samples."""
    data = points((2, [[0, 0]]), (2, [[8, 16], [8, 16], [8, 16]]))
    reached = {}
    for weighting in ("equal", "samples"):
        federation = federate(quadratic(ETA), data, steps=1, aggregator=FedAvg(weighting=weighting))
        for _ in range(200):
            federation.run_round()
        reached[weighting] = federation.state.model["point"].tolist()
    assert reached["equal"] == pytest.approx([4, 8])
    assert reached["samples"] == pytest.approx([6, 12])


def test_fedavgm_on_a_parabola_is_the_heavy_ball_recursion(quadratic, two_clients, federate):
    """With Delta(w) = -g (w - w*): m <- beta m - g (w - w*), w <- w + eta_s m, iterated here on plain arrays."""
    beta, server_lr, steps = 0.9, 0.5, 3
    federation = federate(quadratic(ETA), two_clients, steps=steps, aggregator=FedAvgM(momentum=beta, server_lr=server_lr))
    equal = np.array([0.5, 0.5])
    target, gain = fixed_point(steps, equal), equal @ contraction(steps)
    w, m = START.copy(), np.zeros(2)
    for _ in range(8):
        federation.run_round()
        m = beta * m - gain * (w - target)
        w = w + server_lr * m
        assert federation.state.model["point"].numpy() == pytest.approx(w, abs=1e-11)


class Offset(nn.Module):
    """Return how far the point is from each sample, which a loss may then square."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.tensor(START))

    def forward(self, x):
        return self.point - x.flatten(1)


def parabola(offsets, batch):
    return (batch.y / 2 * offsets.square().sum(dim=1)).mean()


def proximal_objective(mu):
    return ClassificationObjective(
        Offset(), loss=parabola, correction=ProximalCorrection(mu=mu), optimizer=lambda ps: torch.optim.SGD(ps, lr=ETA)
    )


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_fedprox_follows_its_closed_form(mu, steps, two_clients, federate):
    """The gradient of h/2 ||w - c||^2 + mu/2 ||w - w_g||^2 is (h + mu)(w - w'), w' = (h c + mu w_g) / (h + mu).

    So E steps from w_g lead to w' + (1 - eta (h + mu))^E (w_g - w'). Were the norm not squared, or the distance measured from
    anywhere but the broadcast weights, neither the second step nor the second round would come out.
    """
    federation = federate(proximal_objective(mu), two_clients, steps=steps)
    w = START.copy()
    for _ in range(3):
        federation.run_round()
        pulled = (CURVATURES[:, None] * CENTRES + mu * w) / (CURVATURES[:, None] + mu)
        local = pulled + ((1 - ETA * (CURVATURES + mu)) ** steps)[:, None] * (w - pulled)
        w = local.mean(axis=0)
        assert federation.state.model["point"].numpy() == pytest.approx(w, abs=1e-11)


def test_mu_changes_the_second_local_step_and_not_the_first(two_clients, federate):
    """At the broadcast weights the proximal term and its gradient are zero; one step later they are not."""

    def after(mu, steps):
        federation = federate(proximal_objective(mu), two_clients, steps=steps)
        federation.run_round()
        return federation.state.model["point"]

    assert torch.equal(after(0.0, 1), after(2.0, 1))
    assert (after(0.0, 2) - after(2.0, 2)).abs().min() > 0.1
