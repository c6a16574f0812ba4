"""What a correction is told of the learning rate and of the weight of a client's steps, against a quadratic by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.clients.local_training import LocalTraining
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Stragglers
from fedfacet.schedulers import StepScheduler
from fedfacet.selectors.all import AllSelector

LR, STEPS = 0.2, 6


class Point(nn.Module):
    """A point in the space of images, and how far it is from each of a batch."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 16))

    def forward(self, x):
        return self.w - x.flatten(1)


def half_squared_distance(distances, batch):
    return distances.square().sum(dim=1).mean() / 2


class Listens(Correction):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__()
        self.starts, self.ends = [], []

    def on_client_start(self, parameters, start):
        self.starts.append(start)

    def on_client_end(self, end):
        self.ends.append(end)
        return {}, {}


class Witness(Callback):
    """Keeps what the clients sent."""

    needs_updates = True

    def __init__(self):
        self.updates = []

    def on_updates(self, federation, updates):
        self.updates.append(updates)


def by_hand(start, centre, lr, momentum, num_steps):
    """Return the weighted mean of the gradients that heavy-ball SGD meets, and the weights' sum."""
    w, velocity, gradients = start, 0.0, []
    for _ in range(num_steps):
        gradients.append(w - centre)
        velocity = momentum * velocity + gradients[-1]
        w = w - lr * velocity
    weights = [sum(momentum**later for later in range(num_steps - step)) for step in range(num_steps)]
    return sum(a * g for a, g in zip(weights, gradients, strict=True)) / sum(weights), sum(weights)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_delta_over_lr_and_step_weight_is_the_mean_gradient(momentum, tiny_clients, tiny_federation):
    """Under a scheduler and with stragglers; every batch is all that a client has."""
    correction, witness = Listens(), Witness()
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=momentum)  # noqa: E731
    objective = ClassificationObjective(Point(), loss=half_squared_distance, correction=correction, optimizer=optimizer)
    local = LocalTraining(unit="steps", amount=STEPS, batch_size=100)
    federation = tiny_federation(
        clients=tiny_clients(objective=objective, local=local),
        selector=AllSelector(),
        participation=Stragglers(),
        scheduler=StepScheduler(every_n_rounds=1, decay=0.5),
        callbacks={"witness": witness},
    )
    data = [federation.engine.clients.data(client) for client in range(4)]
    centres = [one.batch(np.arange(len(one))).x.flatten(1).mean(dim=0).double() for one in data]
    for round in (1, 2, 3):
        before = federation.state.model["w"].double()
        correction.starts.clear()
        correction.ends.clear()
        federation.run_round()
        lr = LR * 0.5 ** (round - 1)
        updates = witness.updates[-1]
        for centre, start, end, update in zip(centres, correction.starts, correction.ends, updates, strict=True):
            assert start.lr == end.lr == pytest.approx(lr, rel=1e-12)
            assert start.lr_factor == 0.5 ** (round - 1)
            assert start.num_steps == end.num_steps == update.num_steps
            mean_gradient, step_weight = by_hand(before, centre, lr, momentum, end.num_steps)
            assert end.step_weight == update.step_weight == pytest.approx(step_weight, rel=1e-12)
            assert state.digest(end.delta) == state.digest(update.delta)
            ours = -end.delta["w"].double() / (end.lr * end.step_weight)
            torch.testing.assert_close(ours, mean_gradient, rtol=1e-4, atol=1e-5)
    taken = {update.num_steps for updates in witness.updates for update in updates}
    assert STEPS in taken
    assert len(taken) > 2, "and some straggled"
