import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedfacet.clients.workbench import Workbench
from torch import nn
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining, train_client
from fedfacet.clients.program import Clients
from fedfacet.clients.queries.base import Query
from fedfacet.metrics.group_accuracy import GroupAccuracy
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.transforms.base import UpdateTransform
from fedfacet.transforms.clip import ClipUpdate
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.fixture
def runtime(digits, small_cnn):
    """Return a function that binds the main job's clients together."""

    def make(*, transforms=(), model=small_cnn):
        objective = ClassificationObjective(copy.deepcopy(model), optimizer=sgd)
        return Clients(objective, sgd, digits.dataset, digits.partition, LocalTraining(), transforms, torch.device("cpu"))

    return make


@pytest.fixture
def weights(small_cnn):
    return state.clone(small_cnn.state_dict())


def test_a_clients_data_is_its_own(runtime, digits):
    data = runtime().data(3)
    assert len(data) == 40
    assert data.indices is digits.partition.indices[3]
    assert data.y.tolist() == digits.dataset.y[data.indices].tolist()
    assert data.interaction_matrix.counts.tolist() == [[2, 2], [18, 18]]
    first, second = data.batches(25)
    assert (len(first.y), len(second.y)) == (25, 15)
    whole = digits.dataset.batch(data.indices)
    for parts, expected in zip(zip(first, second, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(parts), expected)


def test_it_trains_as_train_client_does(runtime, digits, weights):
    bound = runtime()
    task = ClientTask(5, 2, 0, Broadcast(weights))
    expected = train_client(Workbench(bound.objective), digits.clients[5], task, LocalTraining())
    assert state.digest(bound.train(task).delta) == state.digest(expected.delta)


class AddNoise(UpdateTransform):
    def apply(self, update, rng):
        return replace(update, delta={name: tensor + float(rng.normal()) for name, tensor in update.delta.items()})


class Double(UpdateTransform):
    def apply(self, update, rng):
        return replace(update, delta=state.scaled(update.delta, 2.0))


def test_transforms_are_the_last_deed_in_the_order_given(runtime, weights):
    task = ClientTask(5, 2, 0, Broadcast(weights))
    plain = runtime().train(task)
    bound = state.norm(plain.delta) / 2
    clipped_then_doubled = runtime(transforms=[ClipUpdate(clip_norm=bound), Double()]).train(task)
    doubled_then_clipped = runtime(transforms=[Double(), ClipUpdate(clip_norm=bound)]).train(task)
    assert state.norm(clipped_then_doubled.delta) == pytest.approx(2 * bound, rel=1e-4)
    assert state.norm(doubled_then_clipped.delta) == pytest.approx(bound, rel=1e-4)


def test_clipping_keeps_the_direction_of_huge_updates():
    """The squares of its numbers are infinite in float32."""
    update = ClientUpdate(0, {"w": torch.tensor([3e30, 4e30])}, {}, 1, 1, 1.0, {})
    clipped = ClipUpdate(clip_norm=10.0).apply(update, np.random.default_rng(0))
    torch.testing.assert_close(clipped.delta["w"], torch.tensor([6.0, 8.0]))


def test_every_transform_draws_for_itself_by_round_and_client(runtime, weights):
    def noise(round, client_id, position=0):
        before = runtime(transforms=[Double()] * position).train(ClientTask(client_id, round, 0, Broadcast(weights)))
        after = runtime(transforms=[Double()] * position + [AddNoise()]).train(
            ClientTask(client_id, round, 0, Broadcast(weights))
        )
        return (after.delta["head.bias"] - before.delta["head.bias"])[0].item()

    assert noise(1, 4) == noise(1, 4)
    assert len({round(noise(*key), 4) for key in [(1, 4), (2, 4), (1, 5), (1, 4, 1)]}) == 4


def evaluate(bound, weights, indices):
    (counts,) = bound.count(bound.predict(weights, [indices]), [indices])
    return counts


@pytest.mark.parametrize("batch_size", [64, 1024])
def test_evaluation_counts_what_torchmetrics_counts(batch_size, runtime, digits, weights, monkeypatch):
    """In several batches or in one."""
    monkeypatch.setattr("fedfacet.clients.client_data.evaluation_batch_size", lambda dataset, device: batch_size)
    counts = evaluate(runtime(), weights, digits.dataset.test)
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


def test_evaluating_nothing_is_nan(runtime, weights):
    counts = evaluate(runtime(), weights, np.arange(0))
    assert counts.total == (0, 0, 0, 0)
    assert np.isnan(counts.worst_group_accuracy)


def test_evaluation_is_in_eval_mode_and_leaves_running_statistics_alone(runtime, digits):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Dropout(0.5), nn.Linear(192, 2))
    bound = runtime(model=model)
    model = bound.objective.model
    start = state.clone(model.state_dict())
    first = evaluate(bound, start, digits.val)
    assert evaluate(bound, start, digits.val) == first
    assert state.digest(model.state_dict()) == state.digest(start)
    bound.train(ClientTask(0, 1, 0, Broadcast(start)))
    assert model.training  # a client after an evaluation trains in train mode again


class HeadSum(Query):
    """What the head adds up to for the first class (over all classes, training does not change it)."""

    name = "head_sum"
    needs_model = True

    def answer(self, context):
        return Answer(context.model.head.weight[0].sum().item(), floats_up=1, samples=0)


def test_a_query_is_answered_on_the_broadcast_model(runtime, weights):
    """Whatever the scratch module holds from the client before."""
    bound, task = runtime(), ClientTask(4, 1, 0, Broadcast(weights))
    bound.train(ClientTask(9, 1, 0, Broadcast(weights)))
    assert bound.answer(HeadSum(), task).value == pytest.approx(weights["head.weight"][0].sum().item(), abs=1e-6)
