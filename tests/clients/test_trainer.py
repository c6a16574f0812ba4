import copy
import itertools
from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.prediction import count, predict
from fedfacet.clients.queries.base import Query, answer_query
from fedfacet.clients.trainer import Clients, ClientTrainer
from fedfacet.corrections import Correction, ProximalCorrection
from fedfacet.metrics.group_accuracy import GroupAccuracy
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.transforms import ClipUpdate, UpdateTransform
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.fixture
def make_clients(digits, small_cnn):
    """Return a function that binds the main job's clients together."""

    def make(*, transforms=(), model=small_cnn):
        objective = ClassificationObjective(copy.deepcopy(model), optimizer=sgd)
        return Clients(objective, sgd, digits.dataset, digits.partition, LocalTraining(), transforms, torch.device("cpu"))

    return make


@pytest.fixture
def weights(small_cnn):
    return state.clone(small_cnn.state_dict())


def test_a_clients_data_is_its_own(make_clients, digits):
    data = make_clients().data(3)
    assert len(data) == 40
    assert data.indices is digits.partition.indices[3]
    assert data.y.tolist() == digits.dataset.y[data.indices].tolist()
    assert data.interaction_matrix.counts.tolist() == [[2, 2], [18, 18]]
    first, second = data.batches(25)
    assert (len(first.y), len(second.y)) == (25, 15)
    whole = digits.dataset.batch(data.indices)
    for parts, expected in zip(zip(first, second, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(parts), expected)


class AddNoise(UpdateTransform):
    def apply(self, update, rng):
        return replace(update, delta={name: tensor + float(rng.normal()) for name, tensor in update.delta.items()})


class Double(UpdateTransform):
    def apply(self, update, rng):
        return replace(update, delta=state.scaled(update.delta, 2.0))


def test_transforms_are_the_last_deed_in_the_order_given(make_clients, weights):
    task = ClientTask(5, 2, 0, Broadcast(weights))
    plain = make_clients().train(task)
    bound = state.norm(plain.delta) / 2
    clipped_then_doubled = make_clients(transforms=[ClipUpdate(clip_norm=bound), Double()]).train(task)
    doubled_then_clipped = make_clients(transforms=[Double(), ClipUpdate(clip_norm=bound)]).train(task)
    assert state.norm(clipped_then_doubled.delta) == pytest.approx(2 * bound, rel=1e-4)
    assert state.norm(doubled_then_clipped.delta) == pytest.approx(bound, rel=1e-4)


def test_clipping_keeps_the_direction_of_huge_updates():
    """The squares of its numbers are infinite in float32."""
    update = ClientUpdate(0, {"w": torch.tensor([3e30, 4e30])}, {}, 1, 1, 1.0, {})
    clipped = ClipUpdate(clip_norm=10.0).apply(update, np.random.default_rng(0))
    torch.testing.assert_close(clipped.delta["w"], torch.tensor([6.0, 8.0]))


def test_every_transform_draws_for_itself_by_round_and_client(make_clients, weights):
    def noise(round, client_id, position=0):
        before = make_clients(transforms=[Double()] * position).train(ClientTask(client_id, round, 0, Broadcast(weights)))
        after = make_clients(transforms=[Double()] * position + [AddNoise()]).train(
            ClientTask(client_id, round, 0, Broadcast(weights))
        )
        return (after.delta["head.bias"] - before.delta["head.bias"])[0].item()

    assert noise(1, 4) == noise(1, 4)
    assert len({round(noise(*key), 4) for key in [(1, 4), (2, 4), (1, 5), (1, 4, 1)]}) == 4


def evaluate(clients, weights, indices):
    return count(clients.dataset, predict(clients, weights, [indices]), indices)


@pytest.mark.parametrize("batch_size", [64, 1024])
def test_evaluation_counts_what_torchmetrics_counts(batch_size, make_clients, digits, weights, monkeypatch):
    """In several batches or in one."""
    monkeypatch.setattr("fedfacet.clients.client_data.evaluation_batch_size", lambda dataset, device: batch_size)
    counts = evaluate(make_clients(), weights, digits.dataset.test)
    with rng.forked(0, "weights"):
        model = SmallCNN(2, (3, 8, 8))
    model.load_state_dict(weights)
    x, y, a = digits.dataset.batch(digits.dataset.test)
    with torch.no_grad():
        logits = model(x)
    metric = GroupAccuracy(2, 2)
    assert list(counts.accuracies) == pytest.approx(metric(logits, y, a).flatten().tolist())
    assert list(counts.total) == metric.total.tolist()
    assert counts.loss == pytest.approx(functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_evaluating_nothing_is_nan(make_clients, weights):
    counts = evaluate(make_clients(), weights, np.arange(0))
    assert counts.total == (0, 0, 0, 0)
    assert np.isnan(counts.worst_group_accuracy)


def test_evaluation_is_in_eval_mode_and_leaves_running_statistics_alone(make_clients, digits):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Dropout(0.5), nn.Linear(192, 2))
    clients = make_clients(model=model)
    model = clients.objective.model
    start = state.clone(model.state_dict())
    first = evaluate(clients, start, digits.val)
    assert evaluate(clients, start, digits.val) == first
    assert state.digest(model.state_dict()) == state.digest(start)
    clients.train(ClientTask(0, 1, 0, Broadcast(start)))
    assert model.training  # a client after an evaluation trains in train mode again


class HeadSum(Query):
    """What the head adds up to for the first class (over all classes, training does not change it)."""

    name = "head_sum"
    needs_model = True

    def answer(self, context):
        return Answer(context.model.head.weight[0].sum().item(), floats_up=1, samples=0)


def test_a_query_is_answered_on_the_broadcast_model(make_clients, weights):
    """Whatever the scratch module holds from the client before."""
    clients, task = make_clients(), ClientTask(4, 1, 0, Broadcast(weights))
    clients.train(ClientTask(9, 1, 0, Broadcast(weights)))
    assert answer_query(clients, HeadSum(), task).value == pytest.approx(weights["head.weight"][0].sum().item(), abs=1e-6)


# --- what a program carries from client to client --------------------------------------------------------------------------


class Seen(nn.Module):
    """Puts a new buffer in the place of the old one instead of writing to it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + x.mean()
        return self.linear(x.flatten(1)) * (1 + self.seen)


def test_a_buffer_in_a_new_place_is_followed(client, clients_of, assert_same_update):
    """Its change is that of its last tensor, and the next client starts from what the server sent."""
    objective = ClassificationObjective(Seen(), optimizer=sgd)
    clients = clients_of(objective, client, batch_size=7)
    start = state.clone(clients.program.tensors) | {"seen": torch.tensor(0.5)}
    task = ClientTask(0, 1, 0, Broadcast(start))
    means = [client.batch(positions).x.mean() for positions in itertools.islice(clients.batches(task), 3)]
    updates = [clients.train(task) for _ in range(2)]
    for update in updates:
        torch.testing.assert_close(update.buffers["seen"], sum(means), rtol=1e-4, atol=1e-6)
    assert updates[0].buffers["seen"] != 0
    assert_same_update(updates[1], updates[0])
    clients.program.load(start)
    assert objective.model.seen == 0.5
    assert start["seen"] == 0.5


class Counting(nn.Module):
    """Counts its forward passes in a buffer that no state dict holds, and lets the count show."""

    def __init__(self, in_place):
        super().__init__()
        self.linear = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
        self.in_place = in_place
        self.register_buffer("passes", torch.zeros(()), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        last = self.linear(x)
        shown = last * (1 + self.passes) + (0 if self.last is None else self.last.mean())
        self.last = last.detach()
        if self.in_place:
            self.passes += 1
        else:
            self.passes = self.passes + 1
        return shown


@pytest.mark.parametrize("in_place", [True, False])
def test_no_client_sees_what_another_left_in_a_hidden_buffer(in_place, client, clients_of, assert_same_update):
    clients = clients_of(ClassificationObjective(Counting(in_place), optimizer=sgd), client, batch_size=7)
    task = ClientTask(0, 1, 0, Broadcast(state.clone(clients.program.tensors)))
    first, second = (clients.train(task) for _ in range(2))
    assert_same_update(second, first)


class Forgetful(nn.Module):
    """Keeps in each client what no state dict holds."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
        self.flatten[0].register_buffer("hidden", torch.zeros(2), persistent=False)


class Undivided(Correction):
    divisible = False


class Foreign(L.LightningModule):
    """Does not say what outlives a step."""

    def __init__(self):
        super().__init__()
        self.model = nn.Linear(6, 2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("objective", "divisible"),
    [
        (lambda: ClassificationObjective(nn.Linear(6, 2)), True),
        (lambda: ClassificationObjective(Seen()), True),
        (lambda: ClassificationObjective(nn.BatchNorm1d(6)), True),
        (lambda: ClassificationObjective(nn.Linear(6, 2), correction=ProximalCorrection()), True),
        (lambda: ClassificationObjective(nn.Linear(6, 2), correction=Undivided()), False),
        (lambda: ClassificationObjective(Forgetful()), False),
        (Foreign, False),
    ],
    ids=["linear", "buffer", "batch norm", "proximal", "undivided correction", "hidden buffer", "foreign"],
)
def test_only_what_can_be_carried_along_is_divided(objective, divisible):
    assert ClientTrainer(objective()).divisible is divisible
