"""A client's training that is put down between two steps and taken up elsewhere."""

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))


def task_for(model, **settings):
    return ClientTask(settings.pop("client_id", 0), 1, 0, Broadcast(model), **settings)


class Drawing(nn.Module):
    """Draws random numbers, and has running statistics and a counter that only its buffers carry from step to step."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(5, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + x.mean()  # a new tensor in the place of the old one
        return self.head(self.dropout(self.norm(self.first(x.flatten(1))))) * (1 + self.seen)


class Mixing(nn.Linear):
    """Draws from numpy's and Python's own generators, both of which keep a normal number for later."""

    def __init__(self):
        super().__init__(6, 2)

    def forward(self, x):
        scale = np.random.standard_normal() + random.gauss(0, 1) if self.training else 1.0  # noqa: NPY002
        return scale * super().forward(x.flatten(1))


DIVIDED = {
    "sgd": {"optimizer": partial(torch.optim.SGD, lr=0.1)},
    "sgd with momentum": {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)},
    "adam": {"optimizer": partial(torch.optim.Adam, lr=0.01, amsgrad=True)},
    "fused adam": {"optimizer": partial(torch.optim.AdamW, lr=0.01, fused=True)},
    "dropout and batch norm": {"model": Drawing},
    "numpy's and Python's generators": {"model": Mixing},
    "proximal": {"correction": partial(ProximalCorrection, mu=1.0)},
    "clipped": {"local": {"max_grad_norm": 0.05}},
    "straggler": {"step_fraction": 0.6},
    "steps": {"local": {"unit": "steps", "amount": 7, "batch_size": 30}},
    "with replacement": {"local": {"sampling": "with_replacement"}},
    "all at once": {
        "model": Drawing,
        "optimizer": partial(torch.optim.Adam, lr=0.01),
        "correction": ProximalCorrection,
        "local": {"amount": 3, "max_grad_norm": 0.5},
        "step_fraction": 0.7,
    },
}


@pytest.fixture
def elsewhere(clients_of, client):
    """Return a function that makes clients with a program of their own, as another process has; its weights are no client's."""

    def make(number=0, *, model=linear, correction=lambda: None, optimizer=None, **local):
        with rng.forked(number, "weights"):
            objective = ClassificationObjective(model(), correction=correction(), optimizer=optimizer)
        return clients_of(objective, client, **{"batch_size": 7, "amount": 2} | local)

    return make


def in_parts(places, cuts, task):
    half = None
    for clients, stop in zip(places, cuts, strict=False):
        torch.rand(3)  # whatever else that process does
        half = clients.train_part(task, half, stop)
        assert (half.num_steps, half.num_seen) == (stop, sum(map(len, itertools.islice(clients.batches(task), stop))))
    return places[-1].train_part(task, half, None)


@pytest.mark.parametrize("settings", DIVIDED.values(), ids=DIVIDED)
def test_put_down_after_any_step_and_taken_up_elsewhere_the_update_is_the_same(settings, elsewhere, assert_same_update):
    settings = dict(settings)
    fraction, local = settings.pop("step_fraction", 1.0), settings.pop("local", {})
    places = [elsewhere(number, **settings, **local) for number in range(3)]
    assert all(clients.program.divisible for clients in places)
    task = task_for(state.clone(elsewhere(7, **settings).program.tensors), client_id=3, step_fraction=fraction)
    with rng.forked(0, "test"):
        expected = places[0].train(task)
        num_steps = expected.num_steps
        assert num_steps >= 4
        for cut in range(1, num_steps):
            assert_same_update(in_parts(places[1:], [cut], task), expected)
        for cuts in itertools.combinations(range(1, num_steps), 2):
            assert_same_update(in_parts(places, cuts, task), expected)


def test_the_steps_are_spread_over_the_parts_and_none_is_taken_twice(client, elsewhere):
    places = [elsewhere(number) for number in range(2)]
    task = task_for(state.clone(places[0].program.tensors))
    in_parts(places, [2], task)
    planned = [batch.tolist() for batch in itertools.islice(places[0].batches(task), 6)]
    assert client.dataset.inputs.fetched == planned


def test_a_half_trained_client_shares_no_memory_with_the_program(elsewhere):
    clients = elsewhere()
    task = task_for(state.clone(clients.program.tensors))
    half = clients.train_part(task, None, 1)
    before = state.digest(half.weights)
    clients.train(task_for(task.broadcast.model, client_id=1))
    assert state.digest(half.weights) == before != state.digest(task.broadcast.model)


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.01)])
def test_a_half_trained_client_may_be_taken_up_twice(elsewhere, optimizer, assert_same_update):
    """As it is where whoever went on with it died."""
    clients = elsewhere(model=Drawing, optimizer=optimizer)
    task = task_for(state.clone(clients.program.tensors))
    half = clients.train_part(task, None, 2)
    first, second = (clients.train_part(task, half, None) for _ in range(2))
    assert_same_update(second, first)


def test_torchs_generators_are_put_back_when_training_is_put_down_and_taken_up(elsewhere):
    clients = elsewhere(model=Drawing)
    task = task_for(state.clone(clients.program.tensors))
    before = torch.get_rng_state()
    half = clients.train_part(task, None, 1)
    assert torch.equal(torch.get_rng_state(), before)
    clients.train_part(task, half, None)
    assert torch.equal(torch.get_rng_state(), before)
