"""What every drift correction keeps to."""

import pytest
import torch

from fedfacet import rng, state
from fedfacet.clients.hooks import federated_module
from fedfacet.clients.local_training import LocalTraining
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientEnd, ClientStart, ClientTask


@pytest.fixture
def make_correction(correction_option, make_part):
    """Return a function that makes the correction; the option ``none`` stands for what all of them inherit."""
    return lambda: make_part("correction", correction_option) or Correction()


@pytest.fixture
def correction(make_correction):
    return make_correction()


@pytest.fixture
def parameters():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(3, generator=generator).requires_grad_() for name in ("weight", "bias")}


def start(parameters):
    return ClientStart(Broadcast({name: parameter.detach().clone() for name, parameter in parameters.items()}), {}, 5, 0.1)


def test_before_any_client_it_adds_nothing(correction, parameters):
    """So that the objective trains under a plain Trainer too."""
    assert float(correction(parameters)) == 0


def test_at_the_start_it_adds_nothing_and_pulls_nowhere(correction, parameters):
    correction.on_client_start(parameters, start(parameters))
    value = torch.as_tensor(correction(parameters))
    assert value.shape == ()
    assert float(value.detach()) == 0
    if value.requires_grad:
        value.backward()
        assert all(not parameter.grad.any() for parameter in parameters.values())


def test_it_stays_finite_away_from_the_start(correction, parameters):
    correction.on_client_start(parameters, start(parameters))
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 1.0
    assert torch.isfinite(torch.as_tensor(correction(parameters)).detach())


def test_the_next_client_starts_afresh(correction, parameters):
    correction.on_client_start(parameters, start(parameters))
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 1.0
    correction.on_client_start(parameters, start(parameters))
    assert float(torch.as_tensor(correction(parameters)).detach()) == 0


def test_what_it_hands_over_are_bundles_of_tensors(correction, parameters):
    correction.on_client_start(parameters, start(parameters))
    delta = {name: torch.ones(3) for name in parameters}
    for bundle in correction.on_client_end(ClientEnd(delta, 5, 0.1, 5.0)):
        assert isinstance(bundle, dict)
        assert all(isinstance(tensor, torch.Tensor) and not tensor.requires_grad for tensor in bundle.values())


def test_the_objectives_state_dict_is_the_bare_model(correction):
    """Law 6."""
    with rng.forked(0, "weights"):
        model = torch.nn.Linear(4, 2)
    objective = ClassificationObjective(model, correction=correction)
    weights = {name: tensor.clone() for name, tensor in federated_module(objective).state_dict().items()}
    objective.on_client_start(ClientStart(Broadcast(weights), {}, 5, 0.1))
    objective.training_step(Batch(torch.ones(2, 4), torch.tensor([0, 1]), torch.tensor([0, 0])), 0)
    assert set(objective.state_dict()) == {"model.weight", "model.bias"}
    assert set(federated_module(objective).state_dict()) == {"weight", "bias"}


def test_its_strength_for_the_step_weight_is_a_number(correction):
    assert type(correction.curvature) is float
    assert 0 <= correction.curvature < float("inf")


def test_a_divisible_one_does_the_same_in_two_parts(correction, make_correction, correction_option, tiny_clients):
    """Two processes then take a part of a client's steps each, with a correction of their own."""
    if not correction.divisible:
        pytest.skip(f"{correction_option} keeps what a step changes")
    local = LocalTraining(batch_size=4)
    first = tiny_clients(correction=correction, local=local)
    second = tiny_clients(correction=make_correction(), local=local, seed=1)
    start = Broadcast(state.clone(first.program.tensors))
    second.train(ClientTask(2, 1, 0, Broadcast(state.clone(second.program.tensors))))  # it has had another client before
    memory = first.train(ClientTask(1, 1, 0, start)).memory
    task = ClientTask(1, 2, 0, start, memory)
    expected = first.train(task)
    for cut in range(1, expected.num_steps):
        update = second.train_part(task, first.train_part(task, None, cut), None)
        for name in ("delta", "buffers", "extras", "memory"):
            assert state.digest(getattr(update, name)) == state.digest(getattr(expected, name)), name
        assert (update.step_weight, update.metrics) == (expected.step_weight, expected.metrics)
