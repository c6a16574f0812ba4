"""Clients with models of several shapes side by side, and what engines say a model predicts."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.corrections import Correction
from fedfacet.engines.debug import DebugEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Stragglers
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import Broadcast, ClientTask

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class TwoShapes(Aggregator):
    """Sends clients 0 and 1 a small network and the others the global model; averages each shape by itself."""

    def __init__(self, small):
        super().__init__()
        self.small = small

    def init(self, facts):
        return {"small": self.small}

    def broadcast(self, server, model, client_id):
        return Broadcast(server["small"] if client_id < 2 else model)

    def aggregate(self, server, model, updates):
        updates = list(updates)
        of_shapes = [[update for update in updates if (update.client_id < 2) == is_small] for is_small in (True, False)]
        means = [delta | buffers for delta, buffers in map(self.average, of_shapes)]
        return {"small": state.add(server["small"], means[0])}, state.add(model, means[1])


class Only(ClientSelector):
    """The same clients in every round."""

    def __init__(self, *clients):
        self.clients = list(clients)

    def select(self, server, context):
        return self.clients


class Tuned(ClassificationObjective):
    """Moves its logits by what a client keeps."""

    shift = 0.0

    def forward(self, x):
        return super().forward(x) + self.shift

    def before_predict(self, memory):
        self.shift = memory.get("shift", 0.0)


class Countdown(Correction):
    """Counts a client's steps, which it could not if others took some of them."""

    divisible = False

    def on_client_start(self, parameters, start):
        self.steps = 0

    def forward(self, parameters):
        self.steps += 1
        return 1e-3 * self.steps * sum(parameter.square().sum() for parameter in parameters.values())


@pytest.fixture(scope="module")
def clients(tiny_clients):
    """Four clients who may be sent a network of either width; the training of a small one cannot be divided."""
    with rng.forked(0, "weights"):
        wide = Tuned(SmallCNN(2, (1, 4, 4), width=3, hidden=6), optimizer=SGD)
        small = Tuned(SmallCNN(2, (1, 4, 4), width=2, hidden=4), correction=Countdown(), optimizer=SGD)
    return replace(tiny_clients(objective=wide, local=LocalTraining(batch_size=4)), other_objectives=[small])


@pytest.fixture(scope="module")
def models(clients):
    """The initial weights of both shapes."""
    return {name: state.clone(program.tensors) for name, program in zip(("wide", "small"), clients.programs, strict=True)}


@pytest.fixture(scope="module")
def engines(clients):
    """Exact engines of one process and of two."""
    torch.set_num_threads(1)
    made = {
        "sequential": SequentialEngine(device="cpu"),
        "workers": WorkersEngine(workers=2, device="cpu"),
        "debug": DebugEngine(device="cpu"),
    }
    for engine in made.values():
        engine.setup(clients)
    yield made
    made["workers"].close()


@pytest.fixture(scope="module")
def history(clients, models, tiny_federation):
    """Return a function: engine -> what three rounds come to, and both models in the end."""

    def run(engine, members=(2, 3, 0, 1), *, aggregator=None, clients=clients, start="wide"):
        clients.program.load(models[start])  # which the first model is made of
        federation = tiny_federation(
            engine=engine,
            clients=clients,
            aggregator=aggregator or TwoShapes(models["small"]),
            selector=Only(*members),
            cohort_size=len(members),
            participation=Stragglers(),
        )
        told = [repr((result.receipts, result.metrics)) for result in (federation.run_round() for _ in range(3))]
        return told, state.digest(federation.state.model), state.digest(federation.state.aggregator.get("small", {}))

    return run


@pytest.fixture(scope="module")
def expected(engines, history):
    return history(engines["sequential"])


def test_each_shape_learns_as_if_the_other_were_not_there(clients, models, expected, history):
    alone = []
    for start, members, objective in (("wide", (2, 3), clients.objective), ("small", (0, 1), clients.other_objectives[0])):
        of_one_shape = replace(clients, objective=objective, other_objectives=())
        engine = SequentialEngine(device="cpu")
        alone.append(history(engine, members, aggregator=FedAvg(), clients=of_one_shape, start=start)[1])
    assert list(expected[1:]) == alone
    assert not {state.digest(model) for model in models.values()} & set(alone), "and both did learn"


@pytest.mark.parametrize("engine", ["workers", "debug"])
def test_exact_engines_agree_bit_for_bit(engine, engines, history, expected):
    assert history(engines[engine]) == expected


@pytest.mark.parametrize("engine", ["workers", "debug"])
def test_who_cannot_be_divided_is_trained_whole(engine, engines, clients, models):
    """Of three equal clients on two workers the last is cut, if it can be."""
    tasks = [ClientTask(client, 1, 0, Broadcast(models["small" if client < 2 else "wide"])) for client in (2, 3, 0)]
    expected = [state.digest(clients.train(task).delta) for task in tasks]
    assert [state.digest(update.delta) for update in engines[engine].run(tasks)] == expected


def test_a_question_is_answered_on_the_model_that_was_sent(engines, models):
    tasks = [ClientTask(client, 1, 0, Broadcast(models["small" if client < 2 else "wide"])) for client in range(4)]
    answers = {name: list(engine.ask(LocalLoss(), tasks)) for name, engine in engines.items()}
    assert answers["workers"] == answers["debug"] == answers["sequential"]
    assert len({answer.value for answer in answers["sequential"]}) == 4


def test_side_by_side_they_are_refused_with_a_reason_and_come_out_the_same(history, expected):
    engine = VectorizedEngine(device="cpu")
    assert history(engine) == expected
    assert engine.fallback_reason == "Expected clients with models of one shape, but they have several"


def test_a_shape_that_nobody_has_a_program_for_is_refused(clients, models):
    other = {**models["wide"], "head.bias": torch.zeros(3)}
    with pytest.raises(ValueError, match="Expected a model of one of the 2 shapes that clients have a program for"):
        clients.train(ClientTask(0, 1, 0, Broadcast(other)))


# What a model predicts


@pytest.fixture
def splits(clients, monkeypatch):
    """Splits of several batches, of one, and of none; batches of five samples, so that processes have some each."""
    monkeypatch.setattr("fedfacet.clients.client_data.evaluation_batch_size", lambda dataset, device: 5)
    monkeypatch.setattr("fedfacet.engines.workers.evaluation_batch_size", lambda dataset, device: 5)
    return [clients.dataset.test, clients.dataset.train[3:20], np.empty(0, np.int64), clients.dataset.train[:4]]


def as_bytes(predictions):
    return [[(values.tobytes(), values.dtype, values.shape) for values in part] for part in predictions]


MEMORIES = {
    "nothing": {},
    "a shift": {"shift": torch.tensor([0.0, 0.3])},
    "own layers": {"personal|head.bias": torch.tensor([-0.2, 0.4])},
}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("shape", ["wide", "small"])
def test_engines_predict_the_same_bits_and_count_what_they_predict(shape, memory, engines, models, splits, clients):
    said = {name: engine.predict(models[shape], splits, memory) for name, engine in engines.items()}
    assert as_bytes(said["workers"]) == as_bytes(said["debug"]) == as_bytes(said["sequential"])
    counts = [engine.evaluate(models[shape], splits, memory) for engine in engines.values()]
    assert counts[0] == counts[1] == counts[2]
    network = SmallCNN(2, (1, 4, 4), **{"wide": {"width": 3, "hidden": 6}, "small": {"width": 2, "hidden": 4}}[shape])
    own = {name.removeprefix("personal|"): tensor for name, tensor in memory.items() if name != "shift"}
    network.load_state_dict(models[shape] | own)
    for indices, one, counted in zip(splits, said["sequential"], counts[0], strict=True):
        x, y, a = clients.dataset.batch(indices)
        with torch.no_grad():
            logits = network.eval()(x) + memory.get("shift", 0.0)
        losses = functional.cross_entropy(logits, y, reduction="none").numpy()
        assert one.labels.tolist() == logits.argmax(dim=1).tolist()
        np.testing.assert_allclose(one.losses, losses, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.logits, logits.numpy(), rtol=1e-5, atol=1e-6)
        by_hand = GroupCounts(np.zeros((4, 2), np.int64), pytest.approx(losses.sum(), rel=1e-5))
        for label, true, attribute in zip(one.labels, y, a, strict=True):
            by_hand.confusion[2 * true + attribute, label] += 1
        assert (counted.confusion == by_hand.confusion).all()
        assert counted.loss_sum == by_hand.loss_sum


def test_what_a_client_keeps_changes_what_is_predicted_and_leaves_no_trace(engines, models, splits):
    for engine in engines.values():
        plain = as_bytes(engine.predict(models["wide"], splits))
        others = [as_bytes(engine.predict(models["wide"], splits, memory)) for memory in list(MEMORIES.values())[1:]]
        assert plain != others[0] != others[1] != plain
        (all_of_class_1,) = engine.predict(models["wide"], splits[:1], {"shift": torch.tensor([0.0, 1e3])})
        assert set(all_of_class_1.labels) == {1}
        assert as_bytes(engine.predict(models["wide"], splits)) == plain


def test_no_split_is_no_prediction(engines, models):
    assert [engine.predict(models["wide"], []) for engine in engines.values()] == [[], [], []]
    assert [engine.evaluate(models["wide"], []) for engine in engines.values()] == [[], [], []]
