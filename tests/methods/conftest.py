"""Clients whose losses are parabolas with unequal curvatures, so that gradients, optima and fixed points are known.

Client k pays the mean of h(y) / 2 * ||w - x||^2 over its samples (x, y), with h = 1 for class 0 and 4 for class 1. That is
H_k / 2 * ||w - c_k||^2 and a constant, with H_k the mean of h and c_k the mean of x, weighted by h. All is float64.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.clients.local_training import LocalTraining
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.selectors.all import AllSelector

MATRICES = ([[15, 0], [0, 1]], [[1, 0], [0, 15]], [[8, 0], [8, 0]], [[0, 4], [4, 8]])


class Point(nn.Module):
    """Return how far a point is from each sample."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.linspace(-3, 4, 16, dtype=torch.float64))

    def forward(self, x):
        return self.point - x.flatten(1)


def parabola(offsets, batch):
    return ((1 + 3 * batch.y) / 2 * offsets.square().sum(dim=1)).mean()


def descend(gradient, w, *, lr, steps, momentum=0.0):
    """Return where gradient steps lead, and the gradients met on the way."""
    velocity, met = np.zeros_like(w), []
    for _ in range(steps):
        met.append(gradient(w))
        velocity = momentum * velocity + met[-1]
        w = w - lr * velocity
    return w, np.array(met)


@pytest.fixture
def parabolas(tiny_clients, tiny_federation):
    """A function that makes a federation of such clients, in which all take part unless a selector is given, and the oracle."""
    clients = tiny_clients(matrices=MATRICES)
    curvatures, centres = [], []
    for indices in clients.partition.indices:
        batch = clients.dataset.batch(indices, torch.device("cpu"))
        h = 1.0 + 3 * batch.y.numpy()
        curvatures.append(h.mean())
        centres.append(h @ batch.x.flatten(1).double().numpy() / h.sum())
    H, c = np.array(curvatures), np.array(centres)

    def federate(*, steps, lr=0.1, momentum=0.0, correction=None, **settings):
        objective = ClassificationObjective(
            Point(), loss=parabola, correction=correction, optimizer=partial(torch.optim.SGD, lr=lr, momentum=momentum)
        )
        settings = {"selector": AllSelector(), "rounds": 10_000, **settings}
        local = LocalTraining(unit="steps", amount=steps, batch_size=16)
        return tiny_federation(matrices=MATRICES, objective=objective, local=local, **settings)

    return SimpleNamespace(
        federate=federate,
        descend=descend,
        gradient=lambda client_id, w: H[client_id] * (w - c[client_id]),
        curvatures=H,
        centres=c,
        optimum=H @ c / H.sum(),
        point=lambda federation: federation.state.model["point"].numpy(),
    )


@pytest.fixture
def settled_fedavg(parabolas):
    """A function: learning rate and local steps -> where FedAvg settles on the parabolas.

    A client's steps end at c_k + (1 - lr H_k)^steps (w - c_k), and the mean of these is w.
    """

    def settled(lr, steps):
        pulls = 1 - (1 - lr * parabolas.curvatures) ** steps
        return pulls @ parabolas.centres / pulls.sum()

    return settled
