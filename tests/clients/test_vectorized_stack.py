"""Recorded steps of a stack on the CPU, where a replay takes the step again: beside the same stack without recordings."""

import logging
from functools import partial

import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients import recorded_steps, vectorized_training
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.corrections import ProximalCorrection
from fedfacet.methods.scaffold import ScaffoldCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask

RAGGED = ([[6, 2], [2, 6]], [[1, 2], [2, 0]], [[7, 7], [1, 1]], [[3, 4], [4, 0]], [[2, 1], [1, 1]])
"""Clients of 16, 5, 16, 11 and 5 samples: rows drop out of the stack, and batches are of several sizes."""


@pytest.fixture
def recorded(monkeypatch):
    """Return a function: whether to record -> the steps that are recorded."""
    steps = []

    def capture(step, device, pool):
        for _ in range(2):
            step()
        steps.append(step)
        return step

    def turn(on):
        monkeypatch.setattr(recorded_steps, "capture", capture)
        monkeypatch.setattr(vectorized_training, "can_record", lambda device: on)
        return steps

    return turn


def three_rounds(clients, lr_factors=(1.0, 1.0, 0.5)):
    training, memories, told = StackedTraining(clients), {}, []
    model = state.clone(clients.program.tensors)
    for round, lr_factor in enumerate(lr_factors, 1):
        tasks = [
            ClientTask(k, round, 3, Broadcast(model), memories.get(k, {}), 0.7 if k == 2 else 1.0, lr_factor)
            for k in range(clients.partition.num_clients)
        ]
        updates = training.train_clients(tasks)
        memories = {update.client_id: update.memory for update in updates}
        told += [(u.metrics, *(state.digest(part) for part in (u.delta, u.buffers, u.extras, u.memory))) for u in updates]
        for update in updates:
            model = state.add(model, update.delta | update.buffers, scale=1 / len(updates))
    return told


def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 2)
    )


@pytest.mark.parametrize(
    ("correction", "momentum", "max_grad_norm"),
    [
        (lambda: None, 0.9, None),
        (partial(ProximalCorrection, mu=0.5), 0.9, 0.1),
        (ScaffoldCorrection, 0.0, None),
        (ScaffoldCorrection, 0.9, 0.1),
    ],
)
def test_recorded_steps_of_a_stack_come_to_the_same(correction, momentum, max_grad_norm, recorded, tiny_clients):
    told = []
    for on in (False, True):
        steps = recorded(on)
        with rng.forked(0, "weights"):
            objective = ClassificationObjective(
                net(), correction=correction(), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=momentum)
            )
        local = LocalTraining(batch_size=4, amount=2, max_grad_norm=max_grad_norm)
        told.append(three_rounds(tiny_clients(matrices=RAGGED, objective=objective, local=local)))
        assert bool(steps) == on
    assert told[0] == told[1]


@pytest.mark.parametrize("reads", [False, True])
def test_a_step_that_looks_at_its_number_is_not_recorded(reads, recorded, tiny_clients, caplog):
    class Warming(ClassificationObjective):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * min(1.0, 0.1 * (batch_idx + 1)) if reads else loss

    told = []
    for on in (False, True):
        recorded(on)
        with rng.forked(0, "weights"):
            objective = Warming(net())
        with caplog.at_level(logging.WARNING):
            told.append(three_rounds(tiny_clients(matrices=RAGGED, objective=objective, local=LocalTraining(batch_size=4))))
    assert told[0] == told[1]
    assert [record.message for record in caplog.records] == [
        "Expected a `training_step` that does not use its `batch_idx`, but it does: the steps of the stack are taken kernel by "
        "kernel."
    ] * reads


def test_what_a_recording_reads_stays_where_it_is(recorded, tiny_clients):
    """Notes that all rows share, too: a graph holds addresses, and a proximal term's anchor is made anew in each round."""
    recorded(True)
    correction = ProximalCorrection(mu=0.5)
    with rng.forked(0, "weights"):
        objective = ClassificationObjective(net(), correction=correction)
    clients = tiny_clients(objective=objective, local=LocalTraining(batch_size=4))
    training, places = StackedTraining(clients), []
    for round in range(1, 4):
        model = state.clone(clients.program.tensors)
        tasks = [ClientTask(k, round, 3, Broadcast(model)) for k in range(clients.partition.num_clients)]
        training.train_clients(tasks)
        places.append([tensor.data_ptr() for tensor in correction._anchor.values()])
        assert all(torch.equal(correction._anchor[name], model[name]) for name in correction._anchor)
    assert places[0] == places[1] == places[2]


def test_notes_that_all_share_and_notes_of_each_are_recorded_apart(recorded, tiny_clients):
    """SCAFFOLD's clients begin alike; from the second round on each has a control variate of its own, at another place."""
    steps = recorded(True)
    with rng.forked(0, "weights"):
        objective = ClassificationObjective(net(), correction=ScaffoldCorrection())
    clients = tiny_clients(objective=objective, local=LocalTraining(batch_size=8))
    training, memories, counts = StackedTraining(clients), {}, []
    for round in range(1, 4):
        start = Broadcast(state.clone(clients.program.tensors))
        tasks = [ClientTask(k, round, 3, start, memories.get(k, {})) for k in range(clients.partition.num_clients)]
        memories = {update.client_id: update.memory for update in training.train_clients(tasks)}
        counts.append(len(steps))
    assert counts == [1, 2, 2]
