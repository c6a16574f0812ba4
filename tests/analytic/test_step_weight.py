"""FedNova's ||a_k||_1: how much the accumulated gradients weigh in an update.

SGD of step size eta makes delta = -eta * sum_s a_s g_s of the gradients g_s of its steps s = 0 ... tau - 1 (Wang et al.,
arXiv:2007.07481, section 4):

    plain               a_s = 1                                  ||a||_1 = tau
    momentum rho        a_s = (1 - rho^(tau - s)) / (1 - rho)    ||a||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)
    proximal term mu    a_s = (1 - eta mu)^(tau - 1 - s)         ||a||_1 = (1 - (1 - eta mu)^tau) / (eta mu)

With a constant gradient g the update itself is -eta * ||a||_1 * g, whatever the optimizer.
"""

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask

ETA, TAU = 0.05, 7
SLOPE = torch.tensor([3.0, -2.0], dtype=torch.float64)


class Slope(nn.Module):
    """A loss with the same gradient everywhere."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return (self.point * SLOPE).sum().expand(len(x))


def train(points, objective, task):
    """Train the only client, for TAU steps."""
    data, local = points((1, [[0, 0]])), LocalTraining(unit="steps", amount=TAU)
    clients = Clients(objective, torch.optim.SGD, data.dataset, data.partition, local, (), torch.device("cpu"))
    return clients.train(task)


def trained(points, optimizer, mu=0.0, fraction=1.0):
    objective = ClassificationObjective(
        Slope(), loss=lambda logits, batch: logits.mean(), correction=ProximalCorrection(mu=mu), optimizer=optimizer
    )
    start = {"point": torch.tensor([1.0, 5.0], dtype=torch.float64)}
    return train(points, objective, ClientTask(0, 1, 0, Broadcast(start), step_fraction=fraction))


def sgd(**settings):
    return lambda parameters: torch.optim.SGD(parameters, lr=ETA, **settings)


def momentum_weight(rho, tau):
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize(
    ("optimizer", "mu", "expected"),
    [
        (sgd(), 0.0, TAU),
        (sgd(momentum=0.9), 0.0, momentum_weight(0.9, TAU)),
        (sgd(momentum=0.5), 0.0, momentum_weight(0.5, TAU)),
        (sgd(), 2.0, (1 - (1 - ETA * 2.0) ** TAU) / (ETA * 2.0)),
    ],
)
def test_closed_forms(points, optimizer, mu, expected):
    update = trained(points, optimizer, mu)
    assert update.num_steps == TAU
    assert update.step_weight == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_it_is_the_distance_walked_under_a_constant_gradient(points, rho, mu):
    update = trained(points, sgd(momentum=rho), mu)
    assert update.delta["point"].tolist() == pytest.approx((-ETA * update.step_weight * SLOPE).tolist(), rel=1e-12)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 30.0), (0.5, 15.0), (0.9, 4.0), (0.9, 0.01)])
def test_weights_of_either_sign_count_by_their_size(points, rho, mu):
    """Each gradient's weight by matrix powers: (velocity, place) -> [[rho, -eta mu], [rho, 1 - eta mu]] (velocity, place)."""
    step = np.array([[rho, -ETA * mu], [rho, 1 - ETA * mu]])
    weights = [(np.linalg.matrix_power(step, TAU - 1 - s) @ [1, 1])[1] for s in range(TAU)]
    assert (min(weights) < 0) == (mu > 1)
    update = trained(points, sgd(momentum=rho), mu)
    assert update.step_weight == pytest.approx(np.abs(weights).sum(), rel=1e-12)


def test_it_counts_the_steps_that_were_finished(points):
    update = trained(points, sgd(momentum=0.9), fraction=0.3)
    assert update.num_steps == 3  # ceil(0.3 * 7)
    assert update.step_weight == pytest.approx(momentum_weight(0.9, 3), rel=1e-12)


@pytest.mark.parametrize(
    "optimizer", [lambda ps: torch.optim.Adam(ps, lr=ETA), sgd(momentum=0.9, nesterov=True), sgd(momentum=0.9, dampening=0.5)]
)
def test_optimizers_that_are_not_linear_in_this_way_count_their_steps(points, optimizer):
    assert trained(points, optimizer).step_weight == TAU


def test_a_foreign_module_without_corrections_has_a_step_weight_too(points, quadratic):
    objective: L.LightningModule = quadratic(ETA, momentum=0.9)
    task = ClientTask(0, 1, 0, Broadcast({"point": torch.zeros(2, dtype=torch.float64)}))
    update = train(points, objective, task)
    assert update.step_weight == pytest.approx(momentum_weight(0.9, TAU), rel=1e-12)
