"""MOON's contrastive term, against equation 3 of the paper in numpy on features that are linear in the input."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.callbacks.base import Callback
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.moon import MoonObjective
from fedfacet.participation import Dropouts
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Batch, Broadcast, ClientStart, ClientTask


class Linear(nn.Module):
    """Features W x, of a double-precision W, and a head on them."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(5, 3, bias=False)
        self.head = nn.Linear(3, 2)

    def features(self, x):
        return self.map(x.flatten(1))

    def forward(self, x):
        return self.head(self.features(x))


class Net(nn.Module):
    """Dropout draws numbers, batch normalisation has buffers, and one more buffer is in no state dict."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def features(self, x):
        self.passes += 1
        return self.body(x) + torch.linspace(0, 1, 8) * self.passes

    def forward(self, x):
        return self.head(self.features(x))


def objective(kind, **settings):
    with rng.forked(0, "weights"):
        model = Net()
    return kind(model, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), **settings)


def contrast(z, z_global, z_previous, temperature):
    """Return the mean of equation 3 over a batch."""

    def sim(left, right):
        return (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)

    near, far = np.exp(sim(z, z_global) / temperature), np.exp(sim(z, z_previous) / temperature)
    return -np.log(near / (near + far)).mean()


@pytest.fixture
def started():
    """Return a function: mu, temperature -> an objective in the midst of a round, a batch, and W now, sent and of last time."""

    def make(mu, temperature):
        draw = np.random.default_rng(0)
        now, sent, last = draw.normal(size=(3, 3, 5))
        moon = MoonObjective(Linear().double(), mu=mu, temperature=temperature)
        previous = {f"moon/{name}": tensor for name, tensor in state.clone(moon.model.state_dict()).items()}
        previous["moon/map.weight"] = torch.from_numpy(last)
        moon.model.map.weight.data = torch.from_numpy(sent)
        moon.on_client_start(ClientStart(Broadcast({}), previous, num_steps=4, lr=0.1))
        moon.model.map.weight.data = torch.from_numpy(now)  # as if some steps had been taken
        x = torch.from_numpy(draw.normal(size=(6, 5)))
        return moon, Batch(x, torch.tensor([0, 1, 1, 0, 1, 0]), torch.zeros(6, dtype=torch.int64)), (now, sent, last)

    return make


@pytest.mark.parametrize(("mu", "temperature"), [(1.0, 0.5), (5.0, 0.1), (0.3, 2.0)])
def test_the_term_is_equation_3_and_its_gradient_flows_through_z_alone(mu, temperature, started):
    """The numerical gradient holds the two other models' features where they are."""
    moon, batch, (now, sent, last) = started(mu, temperature)
    x = batch.x.numpy()

    def term(weights):
        return mu * contrast(x @ weights.T, x @ sent.T, x @ last.T, temperature)

    loss = moon.training_step(batch, 0)
    classification = functional.cross_entropy(moon.model(batch.x), batch.y)
    assert (loss - classification).item() == pytest.approx(term(now), rel=1e-9)
    (gradient,) = torch.autograd.grad(loss - classification, [moon.model.map.weight])
    nudges = 1e-6 * np.eye(15).reshape(15, 3, 5)
    numerical = [(term(now + nudge) - term(now - nudge)) / 2e-6 for nudge in nudges]
    assert gradient.numpy().ravel() == pytest.approx(numerical, rel=1e-5, abs=1e-8)
    assert np.abs(numerical).max() > 0.01


def test_nothing_of_the_other_models_is_federated_saved_or_changed(started):
    moon, batch, (_, sent, last) = started(1.0, 0.5)
    optimizer = torch.optim.SGD(moon.parameters(), lr=0.5)
    assert set(moon.state_dict()) == {"model.map.weight", "model.head.weight", "model.head.bias"}
    for _ in range(2):
        moon.training_step(batch, 0).backward()
        optimizer.step()
    now = moon.model.map.weight.detach().numpy()
    x = batch.x.numpy()
    term = moon.training_step(batch, 0) - functional.cross_entropy(moon.model(batch.x), batch.y)
    assert term.item() == pytest.approx(contrast(x @ now.T, x @ sent.T, x @ last.T, 0.5), rel=1e-9)


class Ends(Callback):
    """Notes what every client of a round was sent, and where it ended."""

    needs_updates = True

    def on_updates(self, federation, updates):
        self.sent = federation.state.model
        self.ends = {update.client_id: state.add(self.sent, update.delta | update.buffers) for update in updates}


@pytest.fixture
def moon(tiny_federation):
    """Return a function that makes a federation of four clients, all of whom take part if the rest of it lets them."""

    def make(kind=MoonObjective, *, callbacks=None, participation=None, **settings):
        return tiny_federation(
            objective=objective(kind, **settings),
            rounds=4,
            selector=AllSelector(),
            callbacks=callbacks,
            participation=participation,
        )

    return make


def test_with_mu_0_it_is_fedavg(moon):
    ours, fedavg = moon(mu=0.0).fit(), moon(ClassificationObjective).fit()
    assert state.digest(ours.model) == state.digest(fedavg.model)
    assert not ours.memory, "what nobody needs is not kept"


def test_the_two_other_models_draw_no_numbers_and_touch_no_buffer(moon):
    """Under a weight too small to move anything it is FedAvg, bit for bit, dropout and batch normalisation included."""
    assert state.digest(moon(mu=1e-30).fit().model) == state.digest(moon(ClassificationObjective).fit().model)


def test_a_clients_first_round_is_fedavgs_and_its_second_is_not(moon):
    ours, fedavg = moon(), moon(ClassificationObjective)
    same = []
    for _ in range(2):
        ours.run_round()
        fedavg.run_round()
        same.append(state.digest(ours.state.model) == state.digest(fedavg.state.model))
    assert same == [True, False]


def test_a_latecomer_has_no_term_yet(moon):
    """Its first round may be any round; what matters is whether it has a model of its own."""
    ours, fedavg = moon().engine.clients, moon(ClassificationObjective).engine.clients
    task = ClientTask(2, 7, 0, Broadcast(ours.facts.model))
    ours.train(replace(task, client_id=1, memory=ours.train(replace(task, client_id=1)).memory))  # somebody else's term
    assert state.digest(ours.train(task).delta) == state.digest(fedavg.train(task).delta)


def test_the_last_model_is_the_clients_own_of_its_last_round(moon):
    ends = Ends()
    federation = moon(callbacks={"ends": ends}, participation=Dropouts(away_probability=0.3, dropout_probability=0.2))
    last = {}
    for _ in range(4):
        arrived = federation.run_round().arrived
        last |= ends.ends
        assert set(ends.ends) == set(arrived)
        assert federation.state.memory.keys() == last.keys()
        for client_id, memory in federation.state.memory.items():
            for name, tensor in last[client_id].items():
                if tensor.is_floating_point():
                    torch.testing.assert_close(memory[f"moon/{name}"], tensor)
    assert federation.state.participation_counts.min() < 4


def test_what_a_client_trains_does_not_depend_on_who_trained_before(moon):
    """Not even where a layer counts in a buffer that no state dict holds."""
    clients = moon().engine.clients
    task = ClientTask(1, 1, 0, Broadcast(clients.facts.model))
    task = replace(task, round=2, memory=clients.train(task).memory)
    first = clients.train(task).delta
    assert state.digest(clients.train(task).delta) == state.digest(first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mu": -1.0}, "Expected `objective.mu` to be 0 or larger"),
        ({"mu": float("nan")}, "Expected `objective.mu` to be 0 or larger"),
        ({"temperature": 0.0}, "Expected `objective.temperature` to be larger than 0"),
        ({"model": nn.Linear(2, 2)}, "Expected a model with `features` for objective=moon, but Linear has none"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MoonObjective(**{"model": Linear()} | arguments)
