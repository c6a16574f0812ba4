"""Ditto's two models: the global one is FedAvg's, the personal one what the paper's second line says."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.callbacks.evaluate_clients import EvaluateClients, PersonalEvaluate
from fedfacet.clients.local_training import LocalTraining
from fedfacet.corrections import ProximalCorrection
from fedfacet.data.federated import FederatedData
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.ditto import DittoObjective
from fedfacet.participation import Dropouts, Participation, Stragglers
from fedfacet.schedulers import StepScheduler
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Broadcast, ClientTask

CPU = torch.device("cpu")


class Net(nn.Module):
    """Dropout draws numbers, batch normalisation has buffers of both kinds, and one more buffer is in no state dict."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.passes += self.training
        return self.head(self.body(x)) * (1 + self.passes / 10)


def objective(kind, **settings):
    with rng.forked(0, "weights"):
        model = Net()
    return kind(model, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), **settings)


@pytest.fixture
def ditto(tiny_federation):
    """Return a function that makes a federation of four clients, all of whom take part if the rest of it lets them."""

    def make(kind=DittoObjective, *, clients=None, of_objective=None, **settings):
        settings = {"selector": AllSelector(), "rounds": 3, **settings}
        return tiny_federation(clients=clients, objective=objective(kind, **(of_objective or {})), **settings)

    return make


@pytest.fixture
def alone(tiny_clients):
    """Clients that keep the whole model: ``personal=model``."""
    clients = tiny_clients(objective=objective(ClassificationObjective))
    return replace(clients, personal=frozenset(clients.objective.model.state_dict()))


def own(memory, prefix="ditto/"):
    return {name.removeprefix(prefix): tensor for name, tensor in memory.items()}


def measures(clients):
    """Return callbacks that measure clients' models and the global one."""
    data = FederatedData(clients.dataset, clients.partition, clients.dataset.test[:0])
    return {
        "clients": EvaluateClients(data=data),
        "personal": PersonalEvaluate(data=data),
        "global": Evaluate(data=data, splits={"global": clients.dataset.test}),
    }


CIRCUMSTANCES = {
    "plain": {},
    "stragglers and a scheduler": {
        "participation": Stragglers(straggler_probability=0.7),
        "scheduler": StepScheduler(every_n_rounds=1, decay=0.5),
    },
}


@pytest.mark.parametrize("circumstances", CIRCUMSTANCES)
def test_with_weight_0_the_personal_models_are_those_of_clients_that_train_alone(circumstances, ditto, alone):
    """Bit for bit, batch normalisation's buffers too; and whether somebody measures between the rounds or not."""
    federation = ditto(of_objective={"personal_weight": 0.0}, callbacks=measures(alone), **CIRCUMSTANCES[circumstances])
    theirs = ditto(clients=alone, **CIRCUMSTANCES[circumstances])
    ours, theirs = federation.fit().memory, theirs.fit().memory
    for client_id in range(4):
        assert state.digest(own(ours[client_id])) == state.digest(own(theirs[client_id], "personal|"))
    assert len({state.digest(memory) for memory in ours.values()}) == 4


@pytest.mark.parametrize("circumstances", CIRCUMSTANCES)
def test_the_global_model_is_fedavgs(circumstances, ditto, alone):
    """Bit for bit, though the personal model draws dropout of its own in every step."""
    federation = ditto(of_objective={"personal_weight": 0.5}, callbacks=measures(alone), **CIRCUMSTANCES[circumstances])
    fedavg = ditto(ClassificationObjective, **CIRCUMSTANCES[circumstances])
    assert state.digest(federation.fit().model) == state.digest(fedavg.fit().model)


def test_a_correction_acts_on_the_global_model_only(ditto):
    free, pulled = ditto(rounds=1).fit(), ditto(rounds=1, of_objective={"correction": ProximalCorrection(mu=5.0)}).fit()
    assert state.digest(free.model) != state.digest(pulled.model)
    for client_id in range(4):
        assert state.digest(free.memory[client_id]) == state.digest(pulled.memory[client_id])


def test_a_client_that_is_not_heard_of_keeps_its_personal_model(ditto):
    federation = ditto(participation=Dropouts(dropout_probability=0.5), rounds=6)
    missed = 0
    for _ in range(6):
        before = federation.state.memory
        arrived = federation.run_round().arrived
        for client_id, memory in before.items():
            changed = state.digest(federation.state.memory[client_id]) != state.digest(memory)
            assert changed is (client_id in arrived)
            missed += not changed
    assert missed > 2


def logits_of(weights, x):
    model = Net().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(x)


def test_what_is_measured_is_the_personal_model(ditto, alone):
    """After a round that some clients were away from; the global model is measured as itself, before and after."""
    callbacks = measures(alone)
    participation = Dropouts(away_probability=0.3, dropout_probability=0.3)
    federation = ditto(participation=participation, callbacks=callbacks, of_objective={"personal_weight": 0.01}, rounds=9)
    federation.fit()
    test = alone.dataset.batch(alone.dataset.test, CPU)
    logits = [logits_of(own(federation.state.memory[client_id]), test.x) for client_id in range(4)]
    losses = [functional.cross_entropy(each, test.y).item() for each in logits]
    accuracies = [(each.argmax(dim=1) == test.y).double().mean().item() for each in logits]
    globally = logits_of(federation.state.model, test.x)
    loss = functional.cross_entropy(globally, test.y).item()
    assert min(abs(other - loss) for other in losses) > 1e-3
    before = callbacks["global"].measure(federation, 9)
    measured = callbacks["clients"].measure(federation, 9)
    assert measured["test/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert measured["test/acc"] == pytest.approx(np.mean(accuracies))
    assert [measured["test/acc_min"], measured["test/acc_max"]] == pytest.approx([min(accuracies), max(accuracies)])
    after = callbacks["global"].measure(federation, 9)
    assert before["global/loss"] == after["global/loss"] == pytest.approx(loss, rel=1e-5)


class OnlyTwo(Participation):
    def available(self, num_clients, rng):
        return 1, 3


def test_personal_evaluate_measures_it_as_it_is_after_the_round(ditto, alone):
    """A client of the round as it ended; another, that has taken part before, as it would have if it took part now."""
    callbacks = measures(alone)
    federation = ditto(callbacks=callbacks, of_objective={"personal_weight": 0.0}, rounds=4)
    for _ in range(3):
        federation.run_round()
    memories = ditto(of_objective={"personal_weight": 0.0}, rounds=4).fit().memory  # all take part in round 4
    federation.put(ClientParticipation(OnlyTwo()))
    metrics = federation.run_round().metrics
    test = alone.dataset.batch(alone.dataset.test, CPU)
    accuracies = [
        (logits_of(own(memories[client_id]), test.x).argmax(dim=1) == test.y).double().mean().item() for client_id in range(4)
    ]
    assert len(set(accuracies)) > 1
    assert metrics["personal_test/acc_mean"] == pytest.approx(np.mean(accuracies))
    assert metrics["personal_test/acc_min"] == pytest.approx(min(accuracies))


class Point(nn.Module):
    """Return how far a point is from each sample."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.linspace(-3, 4, 16, dtype=torch.float64))

    def forward(self, x):
        return self.point - x.flatten(1)


def parabola(offsets, batch):
    return ((1 + 3 * batch.y) / 2 * offsets.square().sum(dim=1)).mean()


@pytest.fixture
def parabolas(tiny_clients):
    """Return a function: settings -> clients of parabolas H / 2 ||w - c||^2, and client 2's H and c."""

    def make(*, lr, steps, personal_weight, momentum=0.0):
        ditto = DittoObjective(
            Point(),
            loss=parabola,
            personal_weight=personal_weight,
            optimizer=partial(torch.optim.SGD, lr=lr, momentum=momentum),
        )
        clients = tiny_clients(objective=ditto, local=LocalTraining(unit="steps", amount=steps, batch_size=16))
        batch = clients.dataset.batch(clients.partition.indices[2], CPU)
        h = 1.0 + 3 * batch.y.numpy()
        return clients, h.mean(), h @ batch.x.flatten(1).double().numpy() / h.sum()

    return make


def order(point, memory=None, round=1, **settings):
    return ClientTask(2, round, 0, Broadcast({"point": torch.from_numpy(point)}), memory or {}, **settings)


@pytest.mark.parametrize(("personal_weight", "lr"), [(0.0, 0.3), (0.7, 0.3), (1e4, 1e-4)])
def test_a_personal_model_settles_between_the_clients_optimum_and_the_global_model(personal_weight, lr, parabolas):
    """At (lambda w_g + H c) / (lambda + H), wherever it started: in its second round near the first round's global model."""
    clients, curvature, centre = parabolas(lr=lr, steps=80, personal_weight=personal_weight)
    memory = {}
    for sent in (np.linspace(-3, 4, 16), np.linspace(5, -2, 16)):
        update = clients.train(order(sent, memory))
        memory = update.memory
        expected = (personal_weight * sent + curvature * centre) / (personal_weight + curvature)
        assert own(memory)["point"].numpy() == pytest.approx(expected, abs=1e-8)
        away = np.abs(expected - sent).max()
        assert away > 1 if personal_weight < 1 else away < 2e-3, "a huge weight holds it at the global model"
    assert np.abs(update.delta["point"].numpy()).max() > 0.05


def test_every_step_is_the_papers(parabolas):
    """With the momentum and the learning rate of the round, for as many steps as the client takes, from what it kept."""
    clients, curvature, centre = parabolas(lr=0.1, steps=8, personal_weight=0.7, momentum=0.6)
    v, memory = np.linspace(-3, 4, 16), {}
    rounds = [(0.3, 1.0), (1.0, 0.5), (0.5, 0.25)]  # part of the steps, factor of the learning rate
    for round, (fraction, factor) in enumerate(rounds, 1):
        sent = np.linspace(-3, 4, 16) * round
        update = clients.train(order(sent, memory, round, step_fraction=fraction, lr_factor=factor))
        memory, velocity, w, velocity_of_w = update.memory, 0.0, sent, 0.0
        for _ in range(update.num_steps):
            velocity = 0.6 * velocity + curvature * (v - centre) + 0.7 * (v - sent)
            v = v - 0.1 * factor * velocity
            velocity_of_w = 0.6 * velocity_of_w + curvature * (w - centre)
            w = w - 0.1 * factor * velocity_of_w
        assert own(memory)["point"].numpy() == pytest.approx(v, abs=1e-11)
        assert update.delta["point"].numpy() == pytest.approx(w - sent, abs=1e-11)


def test_what_a_client_trains_does_not_depend_on_who_trained_before(tiny_clients):
    """Not even where a layer counts in a buffer that no state dict holds."""
    clients = tiny_clients(objective=objective(DittoObjective, personal_weight=0.0))
    task = ClientTask(1, 1, 0, Broadcast(clients.facts.model))
    first = clients.train(task).memory
    clients.train(replace(task, client_id=0))
    assert state.digest(clients.train(task).memory) == state.digest(first)


@pytest.mark.parametrize("weight", [-0.1, float("nan")])
def test_the_weight_is_not_negative(weight):
    with pytest.raises(ValueError, match=r"Expected `objective.personal_weight` to be 0 or larger"):
        DittoObjective(Net(), personal_weight=weight)
