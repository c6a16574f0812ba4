"""The vectorized engine through whole federations, beside the sequential one; what it computes is tested with its training."""

import logging
from functools import partial

import pytest
import torch
from torch import nn

from fedfacet import state
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.build import build
from fedfacet.callbacks.base import Callback
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.config import compose_job
from fedfacet.corrections import ProximalCorrection
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.errors import BadUpdateError, EngineError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.participation import Stragglers
from fedfacet.selectors.all import AllSelector
from fedfacet.transforms import ClipUpdate
from fedfacet.types import Broadcast, ClientTask

RAGGED = ([[6, 2], [2, 6]], [[1, 2], [2, 0]], [[7, 7], [1, 1]], [[3, 4], [4, 0]], [[2, 1], [1, 1]])
"""Clients of 16, 5, 16, 11 and 5 samples."""


class Witness(Callback):
    """Keeps what the clients sent."""

    needs_updates = True

    def __init__(self):
        self.updates = []

    def on_updates(self, federation, updates):
        self.updates.extend(updates)


def linear(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def dropping(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, num_classes))


def unforeseen(num_classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(16, num_classes))


@pytest.fixture
def fit(tiny_federation):
    """Return a function that runs a federation with some engine and returns its final state and all updates."""

    def run(engine, **parts):
        witness = Witness()
        federation = tiny_federation(engine=engine, callbacks={"witness": witness}, **parts)
        return federation.fit(), witness.updates

    return run


@pytest.fixture
def tasks():
    """Return a function: clients -> the tasks of a round for all of them."""

    def make(clients, round=1):
        broadcast = Broadcast(state.clone(clients.program.module.state_dict()))
        return [ClientTask(client, round, 0, broadcast) for client in range(clients.partition.num_clients)]

    return make


FEDERATIONS = {
    "even": {"model": linear, "cohort_size": 3},
    "dropout": {"model": dropping, "matrices": RAGGED},
    "convolutions": {"rounds": 2, "lr": 0.05},
    "ragged": {"matrices": RAGGED, "model": linear, "local": LocalTraining(batch_size=4, amount=2), "selector": AllSelector},
    "stragglers": {"matrices": RAGGED, "model": linear, "participation": partial(Stragglers, straggler_probability=0.7)},
    "proximal": {"matrices": RAGGED, "model": linear, "correction": partial(ProximalCorrection, mu=2.0)},
    "server momentum": {"model": linear, "aggregator": partial(FedAvgM, weighting="samples"), "momentum": 0.0},
    "clipped": {"model": linear, "transforms": (ClipUpdate(clip_norm=0.05),)},
    "clipped gradients": {"model": linear, "local": LocalTraining(batch_size=4, max_grad_norm=0.1)},
}


@pytest.mark.parametrize("clients_at_once", [None, 2])
@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_federation_learns_the_same(name, clients_at_once, fit):
    def parts():  # anew each time, since some have a state
        made = {"rounds": 3, **FEDERATIONS[name]}
        factories = {"selector", "participation", "aggregator", "correction"} & made.keys()
        return made | {part: made[part]() for part in factories}

    engine = VectorizedEngine(device="cpu", clients_at_once=clients_at_once)
    ours, our_updates = fit(engine, **parts())
    theirs, their_updates = fit(SequentialEngine(device="cpu"), **parts())
    assert engine.fallback_reason is None
    assert ours.participation_counts.tolist() == theirs.participation_counts.tolist()
    for our, their in zip(our_updates, their_updates, strict=True):
        assert (our.client_id, our.num_steps, our.step_weight) == (their.client_id, their.num_steps, their.step_weight)
        for tensor, expected in zip(our.delta.values(), their.delta.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)
    for tensor, expected in zip(ours.model.values(), theirs.model.values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)


def test_updates_come_in_the_order_of_the_tasks(tiny_clients, tasks):
    clients = tiny_clients(matrices=RAGGED, model=linear)
    engine = VectorizedEngine(device="cpu", clients_at_once=3)
    engine.setup(clients)
    order, orders = [4, 0, 3, 1, 2], tasks(clients)
    updates = list(engine.run(orders[client] for client in order))
    assert [update.client_id for update in updates] == order
    assert [update.num_samples for update in updates] == [5, 16, 11, 5, 16]
    assert engine.fallback_reason is None
    assert list(engine.run([])) == []


def test_how_many_clients_fit(tiny_clients, tasks):
    sizes = {}
    for width in (1, 4000):
        clients = tiny_clients(model=partial(SmallCNN, width=2, hidden=width))
        engine = VectorizedEngine(device="cpu")
        engine.setup(clients)
        list(engine.run(tasks(clients)))
        assert engine.fallback_reason is None
        sizes[width] = engine._size
    weights = 4 * sum(parameter.numel() for parameter in clients.objective.parameters())
    assert sizes[1] > 1000
    assert 10 < sizes[4000] < 2**29 / (4 * weights)


@pytest.mark.parametrize("clients_at_once", [0, -1, 1.5, "many"])
def test_a_size_out_of_range(clients_at_once):
    with pytest.raises(ValueError, match=r"`engine\.clients_at_once` to be a whole number, 1 or larger, or null"):
        VectorizedEngine(clients_at_once=clients_at_once)


# Falling back


def test_what_cannot_be_stacked_is_trained_one_by_one(fit, caplog):
    engine = VectorizedEngine(device="cpu")
    parts = {"rounds": 3, "cohort_size": 3, "model": unforeseen, "matrices": RAGGED}
    with caplog.at_level(logging.WARNING):
        ours, _ = fit(engine, **parts)
    assert [record.message for record in caplog.records] == [
        "Expected layers whose draws do not depend on the data, but those of RReLU may: the clients are trained one after "
        "another."
    ]
    assert engine.fallback_reason == "Expected layers whose draws do not depend on the data, but those of RReLU may"
    theirs, _ = fit(SequentialEngine(device="cpu"), **parts)
    assert state.digest(ours.model) == state.digest(theirs.model)


def test_a_later_setup_starts_afresh(tiny_clients, tasks):
    engine = VectorizedEngine(device="cpu")
    reasons = []
    for model in (linear, unforeseen, linear):
        clients = tiny_clients(model=model)
        engine.setup(clients)
        list(engine.run(tasks(clients)))
        reasons.append(engine.fallback_reason)
    assert reasons == [None, "Expected layers whose draws do not depend on the data, but those of RReLU may", None]


def test_what_turns_out_only_later_is_trained_one_by_one_from_there_on(tiny_clients, tasks, caplog):
    class Late(nn.Module):
        """Looks at values in batches of an odd size, which the trial does not have."""

        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            logits = self.head(x.flatten(1))
            return logits if len(x) % 2 == 0 or logits.sum() > 1e6 else 2 * logits

    clients = tiny_clients(matrices=RAGGED, model=lambda num_classes, input_shape: Late(), local=LocalTraining(batch_size=100))
    engine, reference = VectorizedEngine(device="cpu", clients_at_once=1), SequentialEngine(device="cpu")
    engine.setup(clients)
    reference.setup(clients)
    orders = tasks(clients)
    ours, theirs = list(engine.run(orders)), list(reference.run(orders))
    assert "data-dependent control flow" in engine.fallback_reason
    assert len(caplog.records) == 1
    for our, their in zip(ours, theirs, strict=True):
        for tensor, expected in zip(our.delta.values(), their.delta.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)
    assert [state.digest(update.delta) for update in ours[1:]] == [state.digest(update.delta) for update in theirs[1:]]


def test_an_error_of_the_clients_is_told_as_without_stacks(tiny_clients, tasks):
    def broken(logits, batch):
        raise KeyError("no such loss")

    clients = tiny_clients(model=linear)
    clients.objective.loss = broken
    engine = VectorizedEngine(device="cpu")
    engine.setup(clients)
    with pytest.raises(KeyError, match="no such loss"):
        list(engine.run(tasks(clients)))


def test_numbers_that_are_not_finite_are_told_as_without_stacks(fit):
    told = []
    for engine in (VectorizedEngine(device="cpu"), SequentialEngine(device="cpu")):
        with pytest.raises(BadUpdateError, match="its loss_sum is nan") as caught:
            fit(engine, model=partial(SmallCNN, width=2, hidden=4), lr=1e38, rounds=2)
        told.append(str(caught.value))
    assert told[0] == told[1]


# Queries and evaluation


def test_queries_and_evaluation_are_the_sequential_ones(tiny_clients, tasks):
    clients = tiny_clients(matrices=RAGGED)
    engine, reference = VectorizedEngine(device="cpu"), SequentialEngine(device="cpu")
    for one in (engine, reference):
        one.setup(clients)
    orders = tasks(clients)
    assert list(engine.ask(TrueHeterogeneity(), orders)) == list(reference.ask(TrueHeterogeneity(), orders))
    weights, test = orders[0].broadcast.model, clients.dataset.test
    list(engine.run(orders))  # leaves the program with other weights
    assert engine.evaluate(weights, [test]) == reference.evaluate(weights, [test])


def test_the_option_is_the_engine(tmp_path):
    config, _ = compose_job("train", ["experiment=digits_gsc", "engine=vectorized", "engine.device=cpu", "callbacks=evaluate"])
    config.logger = {}
    config.federation.rounds = 1
    federation = build(config, tmp_path)
    federation.fit()
    assert isinstance(federation.engine, VectorizedEngine)
    assert federation.engine.fallback_reason is None


# Memory


def test_a_stack_that_does_not_fit_takes_fewer_clients_and_says_so_once_for_each_size(tiny_clients, tasks, monkeypatch, caplog):
    """The card is played: a stack of more than one row runs out of memory."""
    train, sizes = StackedTraining.train_clients, []

    def on_a_small_card(self, orders):
        sizes.append(len(orders))
        if len(orders) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train(self, orders)

    monkeypatch.setattr(StackedTraining, "train_clients", on_a_small_card)
    clients = tiny_clients(matrices=RAGGED, model=linear)
    engine, reference = VectorizedEngine(device="cpu", clients_at_once=5), SequentialEngine(device="cpu")
    engine.setup(clients)
    reference.setup(clients)
    ours, theirs = list(engine.run(tasks(clients))), list(reference.run(tasks(clients)))
    assert [update.client_id for update in ours] == [update.client_id for update in theirs] == list(range(5))
    assert sizes == [5, 2, 1, 1, 1, 1, 1]
    assert engine.fallback_reason is None
    assert [record.message for record in caplog.records] == [
        "5 clients at once do not fit into the memory of cpu: taking 2.",
        "2 clients at once do not fit into the memory of cpu: taking 1.",
    ]


def test_a_client_that_does_not_fit_by_itself_is_named(tiny_clients, tasks):
    def large(logits, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    clients = tiny_clients(model=linear)
    clients.objective.loss = large
    for engine in (SequentialEngine(device="cpu"), VectorizedEngine(device="cpu")):
        engine.setup(clients)
        with pytest.raises(EngineError, match=r"^Client 0 in round 1 does not fit into the memory of cpu: lower"):
            list(engine.run(tasks(clients)))
