"""What every choice of personal layers keeps to."""

from dataclasses import replace

import pytest

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.errors import ConfigError
from fedfacet.models.resnet8 import ResNet8
from fedfacet.types import Broadcast, ClientTask


def names_of(layers, model):
    """Return what stays with the clients; without personal layers nothing does."""
    try:
        return layers.names(model) if layers is not None else frozenset()
    except ConfigError as refusal:  # somebody's own, for a network of its own
        pytest.skip(str(refusal))


@pytest.fixture
def model():
    with rng.forked(0, "weights"):
        return ResNet8(2, (1, 4, 4), width=2)


@pytest.fixture
def clients(personal_option, make_part, tiny_clients) -> Clients:
    clients = tiny_clients(
        model=lambda num_classes, shape: ResNet8(num_classes, shape, width=2), local=LocalTraining(batch_size=4)
    )
    return replace(clients, personal=names_of(make_part("personal", personal_option), clients.objective.model))


def test_names_are_the_models_own_and_leave_something_to_federate(personal_option, make_part, model):
    layers = make_part("personal", personal_option)
    names = names_of(layers, model)
    assert names <= set(model.state_dict())
    assert (names == set(model.state_dict())) == (personal_option == "model")
    assert bool(names) == (layers is not None) == (personal_option != "none")
    assert names == names_of(make_part("personal", personal_option), model)


def test_what_is_personal_stays_and_the_rest_travels(clients):
    start = Broadcast(state.clone(clients.program.tensors))
    update = clients.train(ClientTask(0, 1, 0, start))
    trained = set(clients.program.parameters) | set(clients.program.buffers)
    assert update.delta.keys() | update.buffers.keys() == trained - clients.personal
    assert {name.partition("|")[2] for name in update.memory} == set(clients.personal)
    assert all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in update.memory.values())


def test_a_client_takes_up_its_own_layers(clients):
    """Its second round is that of a client who was sent them."""
    start = Broadcast(state.clone(clients.program.tensors))
    memory = clients.train(ClientTask(0, 1, 0, start)).memory
    own = start.model | {name.partition("|")[2]: tensor for name, tensor in memory.items()}
    ours = clients.train(ClientTask(0, 2, 0, start, memory))
    theirs = clients.train(ClientTask(0, 2, 0, Broadcast(own)))
    assert state.digest(ours.delta | ours.buffers) == state.digest(theirs.delta | theirs.buffers)
    assert state.digest(ours.memory) == state.digest(theirs.memory)


def test_a_client_divided_between_processes_keeps_the_same(clients):
    start = Broadcast(state.clone(clients.program.tensors))
    memory = clients.train(ClientTask(1, 1, 0, start)).memory
    task = ClientTask(1, 2, 0, start, memory)
    expected = clients.train(task)
    for cut in range(1, expected.num_steps):
        update = clients.train_part(task, clients.train_part(task, None, cut), None)
        for name in ("delta", "buffers", "memory"):
            assert state.digest(getattr(update, name)) == state.digest(getattr(expected, name)), name
