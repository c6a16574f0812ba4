"""A probe is the beginning of the client's training: the same steps, and nothing but their length leaves the client."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.prediction import predict
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.probe_norm import ProbeNorm
from fedfacet.corrections import ProximalCorrection
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.methods.fedpac import FedPACObjective
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask


def task_of(clients, client_id=1, **more):
    return ClientTask(client_id, 3, 7, Broadcast(state.clone(clients.program.tensors)), **more)


@pytest.fixture
def dropout_clients(tiny_clients):
    """Clients with everything that could tell a probe from training: dropout, momentum, a proximal term, augmentation."""

    def make(local=None):
        with rng.forked(0, "weights"):
            model = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
            )
        objective = ClassificationObjective(
            model, correction=ProximalCorrection(mu=0.5), optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        )
        clients = tiny_clients(objective=objective, local=local or LocalTraining(batch_size=4, amount=2))
        return replace(clients, dataset=replace(clients.dataset, augmentation=CropAndFlip(padding=1)))

    return make


@pytest.mark.parametrize("probe_steps", [1, 2, 5])
def test_it_is_the_distance_that_the_first_steps_of_training_cover(dropout_clients, probe_steps):
    clients = dropout_clients()
    task = task_of(clients)
    answer = answer_query(clients, ProbeNorm(probe_steps=probe_steps), task)
    half = clients.train_part(task, None, probe_steps)
    moved = torch.cat([(half.weights[name] - task.broadcast.model[name]).flatten() for name in half.weights])
    assert answer.value == pytest.approx(moved.double().norm().item(), rel=1e-12), "summed in float64, as `clip` does"
    assert answer.value > 0
    assert (answer.floats_up, answer.samples) == (1, 4 * probe_steps)
    assert type(answer.value) is float


def test_samples_that_the_objective_looks_at_first_are_counted(tiny_clients):
    with rng.forked(0, "weights"):
        model = SmallCNN(num_classes=2, input_shape=(1, 4, 4))
    clients = tiny_clients(objective=FedPACObjective(model), local=LocalTraining(batch_size=4))
    answer = answer_query(clients, ProbeNorm(probe_steps=2), task_of(clients))
    assert answer.samples == len(clients.data(1)) + 8


def test_training_that_goes_on_from_a_probe_is_uninterrupted_training(dropout_clients):
    """Bit for bit, whatever the probe's length; and so is training of which the probe has been lost."""
    for probe_steps in (1, 2, 5):
        clients, untouched = dropout_clients(), dropout_clients()
        task = task_of(clients)
        expected = untouched.train(task)
        answer_query(clients, ProbeNorm(probe_steps=probe_steps), task)
        assert clients.probed.find(task, 100) is not None
        goes_on = clients.train(task)
        for update in (goes_on, clients.train(replace(task, broadcast=Broadcast(dict(task.broadcast.model))))):
            assert state.digest(update.delta) == state.digest(expected.delta)
            assert update.metrics == expected.metrics
            assert (update.num_steps, update.step_weight) == (expected.num_steps, expected.step_weight)


def test_the_steps_of_a_probe_are_not_taken_again(dropout_clients, monkeypatch):
    clients = dropout_clients()
    task = task_of(clients)
    taken = []
    step = clients.program.step
    monkeypatch.setattr(clients.program, "step", lambda batch, number: taken.append(number) or step(batch, number))
    answer_query(clients, ProbeNorm(probe_steps=3), task)
    clients.train(task)
    assert taken == list(range(8))


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.6])
def test_a_straggler_that_does_less_than_its_probe_is_trained_anew(dropout_clients, fraction):
    clients = dropout_clients()
    task = task_of(clients)
    answer_query(clients, ProbeNorm(probe_steps=3), task)
    late = replace(task, step_fraction=fraction)
    assert state.digest(clients.train(late).delta) == state.digest(dropout_clients().train(late).delta)


@pytest.mark.parametrize("probe_steps", [8, 9, 1000])
def test_a_probe_is_never_longer_than_training(dropout_clients, probe_steps):
    clients = dropout_clients()
    task = task_of(clients)
    answer = answer_query(clients, ProbeNorm(probe_steps=probe_steps), task)
    update = clients.train(task)
    assert answer.samples == update.metrics["num_seen"] == 32
    assert answer.value == pytest.approx(state.norm(update.delta), rel=1e-5)


def test_a_probe_shows_nothing_of_itself_in_what_follows(dropout_clients):
    """Neither in another client's training nor in an evaluation."""
    clients, untouched = dropout_clients(), dropout_clients()
    before = torch.get_rng_state()
    other = task_of(clients, 2)
    answer_query(clients, ProbeNorm(), task_of(clients, 1))
    assert torch.equal(torch.get_rng_state(), before)
    weights = other.broadcast.model
    assert (
        predict(clients, weights, [clients.dataset.test]).labels == predict(untouched, weights, [untouched.dataset.test]).labels
    ).all()
    assert state.digest(clients.train(other).delta) == state.digest(untouched.train(other).delta)


def test_an_objective_that_cannot_be_put_down_is_trained_from_the_start(dropout_clients, monkeypatch):
    clients = dropout_clients()
    monkeypatch.setattr(ProximalCorrection, "divisible", False)
    task = task_of(clients)
    answer_query(clients, ProbeNorm(), task)
    assert clients.probed.find(task, 100) is None
    assert state.digest(clients.train(task).delta) == state.digest(dropout_clients().train(task).delta)


@pytest.mark.parametrize("probe_steps", [0, -1, 1.5, "2"])
def test_impossible_lengths_are_refused(probe_steps):
    with pytest.raises(ValueError, match="`probe_steps` to be a whole number, 1 or larger, but got"):
        ProbeNorm(probe_steps=probe_steps)
