"""Recorded steps on the CPU, where ``capture`` takes a step a few times and a replay takes it again: all but the graph.

What a CUDA graph adds is tested where there is a GPU, in tests/parity/test_gpu.py.
"""

import logging
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients import recorded_steps, recorded_training
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.recorded_training import RecordedTraining, Recordings
from fedfacet.corrections import ProximalCorrection
from fedfacet.engines.graphs import GraphsEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.methods.scaffold import ScaffoldCorrection
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.moon import MoonObjective
from fedfacet.types import Broadcast, ClientTask

RAGGED = ([[6, 2], [2, 6]], [[1, 2], [2, 0]], [[7, 7], [1, 1]], [[3, 4], [4, 0]], [[2, 1], [1, 1]])
"""Clients of 16, 5, 16, 11 and 5 samples."""


@pytest.fixture(autouse=True)
def captured(monkeypatch):
    """Record on the CPU; return the steps that were recorded."""
    captured = []

    def capture(step, device, pool):
        for _ in range(3):
            step()
        captured.append(step)
        return step

    monkeypatch.setattr(recorded_steps, "capture", capture)
    monkeypatch.setattr(recorded_training, "can_record", lambda device: True)
    return captured


class Momentum(torch.optim.SGD):
    pass


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}


class Net(nn.Module):
    """With dropout, running statistics, a tied weight and a parameter that is no part of the loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3))
        self.hidden, self.tied = nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied.weight = self.hidden.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(16, 2)

    def features(self, x):
        return self.tied(self.hidden(self.body(x)).relu())

    def forward(self, x):
        return self.head(self.features(x))


def proximal(model, optimizer):
    return ClassificationObjective(model, correction=ProximalCorrection(mu=0.5), optimizer=optimizer)


def scaffold(model, optimizer):
    return ClassificationObjective(model, correction=ScaffoldCorrection(), optimizer=optimizer)


def moon(model, optimizer):
    return MoonObjective(model, optimizer=optimizer)


OBJECTIVES = {"plain": lambda model, optimizer: ClassificationObjective(model, optimizer=optimizer)}
OBJECTIVES |= {"proximal": proximal, "scaffold": scaffold, "moon": moon}


@pytest.fixture
def make(tiny_clients):
    """Return a function that makes clients."""

    def make(objective="plain", optimizer="momentum", net=Net, **more):
        with rng.forked(0, "weights"):
            made = OBJECTIVES[objective](net(), OPTIMIZERS[optimizer])
        return tiny_clients(**{"matrices": RAGGED, "local": LocalTraining(batch_size=4, amount=2), **more}, objective=made)

    return make


def rounds(engine, clients, lr_factors=(1.0, 1.0, 0.5)):
    """Run a few rounds by hand, in which clients keep their memories; return digests of all that they send and keep."""
    engine.setup(clients)
    model, memories, digests = state.clone(clients.program.tensors), {}, []
    for round, lr_factor in enumerate(lr_factors, 1):
        tasks = [
            ClientTask(k, round, 3, Broadcast(model), memories.get(k, {}), 0.7 if k == 2 else 1.0, lr_factor)
            for k in range(clients.partition.num_clients)
        ]
        updates = list(engine.run(tasks))
        memories = {update.client_id: update.memory for update in updates}
        digests += [
            (update.metrics, *(state.digest(getattr(update, name)) for name in ("delta", "buffers", "extras", "memory")))
            for update in updates
        ]
        deltas = [update.delta | update.buffers for update in updates]
        for delta in deltas:
            model = state.add(model, delta, scale=1 / len(deltas))
    return digests


@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [*(("plain", name) for name in OPTIMIZERS), *((name, "momentum") for name in OBJECTIVES if name != "plain")],
)
def test_recorded_steps_come_to_the_same_bit_for_bit(objective, optimizer, make, captured):
    engine = GraphsEngine(device="cpu")
    ours = rounds(engine, make(objective, optimizer, Net))
    assert engine.fallback_reason is None
    assert ours == rounds(SequentialEngine(device="cpu"), make(objective, optimizer, Net))
    # Batches of 4, 3 and 1 samples, at two learning rates; MOON's first round has no last model to compare with.
    assert len(captured) == {"moon": 9}.get(objective, 6)


@pytest.mark.parametrize(
    "more",
    [
        {"local": LocalTraining(batch_size=4, keep_optimizer=True)},
        {"local": LocalTraining(batch_size=4, max_grad_norm=0.1)},
        {"local": LocalTraining(batch_size=4, unit="steps", amount=7, sampling="with_replacement")},
        {"local": LocalTraining(batch_size=100)},
    ],
    ids=["kept momentum", "clipped gradients", "with replacement", "one batch"],
)
def test_local_training_of_every_kind(more, make, monkeypatch):
    monkeypatch.setattr(recorded_training, "_AT_ONCE", 3)  # steps whose batches are sent together
    engine = GraphsEngine(device="cpu")
    assert rounds(engine, make(**more)) == rounds(SequentialEngine(device="cpu"), make(**more))
    assert engine.fallback_reason is None


def test_inputs_that_do_not_lie_on_the_device(make):
    class Elsewhere:
        def __init__(self, inputs):
            self.inputs = inputs

        def __len__(self):
            return len(self.inputs)

        def fetch(self, indices):
            return self.inputs.fetch(indices)

    clients = make()
    elsewhere = replace(clients, dataset=replace(clients.dataset, inputs=Elsewhere(clients.dataset.inputs)))
    engine = GraphsEngine(device="cpu")
    assert rounds(engine, elsewhere) == rounds(SequentialEngine(device="cpu"), make())
    assert engine.fallback_reason is None


def test_a_capturable_optimizer(make, monkeypatch):
    """Whose state is zeros at first."""
    monkeypatch.setitem(OPTIMIZERS, "adam", lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    monkeypatch.setattr(recorded_training, "_known_obstacle", lambda clients: None)  # `capturable` needs an accelerator
    recordings = Recordings(clients := make(optimizer="adam", net=lambda: SmallCNN(2, (1, 4, 4), width=2, hidden=4)))
    task = ClientTask(0, 1, 0, Broadcast(state.clone(clients.program.tensors)))
    for _ in range(2):
        ours = clients.train(task, lambda *of: RecordedTraining(recordings, *of))
    assert state.digest(ours.delta) == state.digest(clients.train(task).delta)


def test_global_generators_are_left_alone(make):
    before = torch.get_rng_state()
    rounds(GraphsEngine(device="cpu"), make())
    assert torch.equal(torch.get_rng_state(), before)


# What falls back


def test_an_update_that_differs_is_noticed(make, monkeypatch, caplog):
    """As where a graph holds a number that was Python's: here a replay that does nothing."""
    monkeypatch.setattr(recorded_steps, "capture", lambda step, device, pool: lambda: None)
    engine = GraphsEngine(device="cpu")
    with caplog.at_level(logging.WARNING):
        ours = rounds(engine, make())
    assert ours == rounds(SequentialEngine(device="cpu"), make())
    assert engine.fallback_reason == "Expected recorded steps to come out like others, but a client's update differs"
    assert [record.message for record in caplog.records] == [
        f"{engine.fallback_reason}: engine=graphs trains the clients as engine=sequential does."
    ]


def test_a_step_that_cannot_be_recorded_names_its_layer(make, monkeypatch, caplog):
    class Reading(nn.Module):
        def forward(self, x):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more. And more")

    class WithReading(SmallCNN):
        """Reads a number once a step is recorded."""

        reads = False

        def forward(self, x):
            return super().forward(Reading()(x) if WithReading.reads else x)

    def recording(step, device, pool):
        WithReading.reads = True
        try:
            step()
        finally:
            WithReading.reads = False

    monkeypatch.setattr(recorded_steps, "capture", recording)
    engine = GraphsEngine(device="cpu")
    clients = make(net=lambda: WithReading(2, (1, 4, 4), width=2, hidden=4))
    with caplog.at_level(logging.WARNING):
        ours = rounds(engine, clients)
    assert engine.fallback_reason == (
        "Expected layers that a CUDA graph can hold, but Reading cannot be (CUDA error: operation not permitted when stream is "
        "capturing)"
    )
    assert len(caplog.records) == 1
    assert ours == rounds(SequentialEngine(device="cpu"), make(net=lambda: SmallCNN(2, (1, 4, 4), width=2, hidden=4)))


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), "SGD cannot"),
        (lambda p: torch.optim.Adam(p), r"Adam cannot: set optimizer\.capturable=true"),
        (Momentum, "Momentum cannot"),
    ],
)
def test_optimizers_that_cannot_be_recorded(optimizer, reason, make, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "own", optimizer)
    engine = GraphsEngine(device="cpu")
    rounds(engine, make(optimizer="own"), lr_factors=(1.0,))
    assert engine.fallback_reason.startswith("Expected an optimizer that can be recorded, but")
    assert re.search(reason, engine.fallback_reason)


def test_without_a_gpu_it_trains_as_the_sequential_engine_does(make, monkeypatch):
    monkeypatch.setattr(recorded_training, "can_record", recorded_steps.can_record)
    engine = GraphsEngine(device="cpu")
    assert rounds(engine, make()) == rounds(SequentialEngine(device="cpu"), make())
    assert engine.fallback_reason == "Expected a CUDA device, but clients train on cpu"
