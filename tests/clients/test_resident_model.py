"""The model on its device and the update on its way back, on the CPU in an accelerator's place."""

from dataclasses import replace

import pytest
import torch

from fedfacet import state
from fedfacet.clients import resident_model
from fedfacet.clients.resident_model import ResidentModel
from fedfacet.clients.trainer import ClientTrainer
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask


@pytest.fixture
def model():
    return {"a": torch.randn(3, 2), "b": torch.arange(3), "c": torch.randn(5, dtype=torch.float64)}


def equal(left, right):
    return left.keys() == right.keys() and all(map(torch.equal, left.values(), right.values()))


def test_a_model_is_sent_once(model, monkeypatch):
    sent = []
    send = ResidentModel._send
    monkeypatch.setattr(ResidentModel, "_send", lambda self, weights: (sent.append(1), send(self, weights)))
    resident = ResidentModel(model)
    for _ in range(3):
        assert equal(resident.upload(dict(model)), model)
    assert len(sent) == 1
    model["a"] += 1  # somebody has written to it
    assert equal(resident.upload(model), model)
    other = state.clone(model)
    assert equal(resident.upload(other), other)
    assert equal(resident.upload(model | {"c": model["c"] + 1}), model | {"c": model["c"] + 1}), "a client's own layers"


def test_what_has_another_shape_or_type_is_left_alone(model):
    resident = ResidentModel(model)
    for other in (model | {"a": model["a"].double()}, model | {"a": model["a"][:1]}, {"a": model["a"]}):
        assert resident.upload(other) is other


def test_a_difference_has_the_bits_of_the_cpu(model):
    resident = ResidentModel(model)
    ended = {name: torch.randn_like(model[name]) * 1e-3 + model[name] for name in ("a", "c")}
    ended["a"] = ended["a"].t().contiguous().t()  # another memory order
    moved = resident.download(ended, model)
    assert state.digest(moved) == state.digest(state.subtract(ended, model))
    assert all(tensor.is_contiguous() for tensor in moved.values())


def test_tensors_travel_together():
    """One after another in the same memory, for each dtype."""
    bundle = {"a": torch.randn(3, 2), "b": torch.arange(3), "c": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    moved = resident_model._together(bundle, torch.device("cpu"))
    assert list(moved) == list(bundle)
    assert equal(moved, bundle)
    assert all(tensor.is_contiguous() for tensor in moved.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in moved.values()}) == 2


@pytest.mark.parametrize("personal", [frozenset(), frozenset({"head.weight", "head.bias"})])
def test_clients_train_the_same_with_a_resident_model(personal, tiny_clients):
    """Two rounds of three clients, whose layers of their own differ in the second."""
    digests = []
    for resides in (False, True):
        clients = replace(tiny_clients(), personal=personal)
        if resides:
            program: ClientTrainer = clients.program
            program.resident = ResidentModel(program.tensors)
        assert isinstance(clients.objective, ClassificationObjective)
        model, memories = state.clone(clients.program.tensors), {client_id: {} for client_id in range(3)}
        for round in (1, 2):
            updates = [clients.train(ClientTask(k, round, 0, Broadcast(model), memories[k])) for k in range(3)]
            memories = {update.client_id: update.memory for update in updates}
            model = state.add(model, state.scaled(updates[0].delta, 0.5))
        digests.append([[state.digest(bundle) for bundle in (u.delta, u.buffers, u.memory)] for u in updates])
    assert digests[0] == digests[1]
