import copy
import itertools
import math

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.hooks import ClientHooks, check_objective, federated_module
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.optimizers import single_optimizer
from fedfacet.clients.trainer import ClientTrainer
from fedfacet.derived import derive
from fedfacet.objectives.classification import ClassificationObjective, take_loss
from fedfacet.objectives.counting import ReweighingObjective
from fedfacet.types import Broadcast, ClientTask


@pytest.fixture
def holding(clients_of, tabular):
    """Return a function: how many samples, settings of local training -> clients who hold so many."""

    def make(num_samples, **local):
        client = tabular(np.zeros((num_samples, 6)), [0] * num_samples, num_classes=2)
        return clients_of(ClassificationObjective(linear()), client, **local)

    return make


TASK = ClientTask(0, 1, 0, Broadcast({}))


@pytest.mark.parametrize(
    ("num_samples", "steps"), [(100, 4), (156, 6), (166, 6), (200, 8), (492, 18), (496, 18), (28, 1), (29, 2), (1, 1)]
)
def test_an_epoch_keeps_the_last_short_batch(num_samples, steps, holding):
    """The papers' client sizes at batch size 28: ceil(n_k / 28) steps."""
    assert holding(num_samples, batch_size=28).num_steps(TASK) == steps
    assert holding(num_samples, batch_size=28, amount=3).num_steps(TASK) == 3 * steps


def test_steps_are_steps_whatever_the_client_holds(holding):
    sizes = (1, 28, 1000)
    assert {holding(size, unit="steps", amount=5, batch_size=28).num_steps(TASK) for size in sizes} == {5}


def epochs_of(clients, epochs):
    per_epoch = math.ceil(len(clients.data(0)) / clients.local.batch_size)
    stream = clients.batches(TASK)
    return [list(itertools.islice(stream, per_epoch)) for _ in range(epochs)]


def test_without_replacement_every_sample_comes_once_an_epoch_in_new_order(holding):
    epochs = epochs_of(holding(200, batch_size=28), 3)
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [28] * 7 + [4]
        assert sorted(np.concatenate(epoch)) == list(range(200))
    assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))


def test_with_replacement_an_epoch_draws_as_many_samples_as_there_are(holding):
    epochs = epochs_of(holding(200, batch_size=28, sampling="with_replacement"), 50)
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [28] * 7 + [4]
    distinct = [len(set(np.concatenate(epoch))) for epoch in epochs]
    assert np.mean(distinct) == pytest.approx(200 * (1 - (1 - 1 / 200) ** 200), rel=0.02)  # about 1 - 1/e of them
    assert np.bincount(np.concatenate([np.concatenate(epoch) for epoch in epochs])).min() > 20  # of 50 expected


def test_a_client_without_samples_is_refused_and_not_waited_for(holding):
    clients = holding(4)
    object.__setattr__(clients, "owned", (np.arange(0),))
    with pytest.raises(ValueError, match="Expected a client to hold at least one sample"):
        next(clients.batches(TASK))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "rounds"}, "`local.unit` to be 'epochs' or 'steps', but got 'rounds'"),
        ({"amount": 0}, "`local.amount` to be a whole number, 1 or larger, but got 0"),
        ({"amount": 1.5}, "`local.amount` to be a whole number, 1 or larger, but got 1.5"),
        ({"batch_size": 0}, "`local.batch_size` to be a whole number, 1 or larger, but got 0"),
        ({"sampling": "bootstrap"}, "`local.sampling` to be 'without_replacement' or 'with_replacement'"),
        ({"max_grad_norm": 0.0}, "`local.max_grad_norm` to be larger than 0 or null, but got 0.0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**settings)


# --- Clients.train ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def sgd():
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def linear():
    with rng.forked(0, "weights"):
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))


def task_for(model, **settings):
    return ClientTask(settings.pop("client_id", 0), settings.pop("round", 1), 0, Broadcast(model), **settings)


def test_an_update_is_local_minus_broadcast(client, sgd, clients_of):
    objective = ClassificationObjective(linear(), optimizer=sgd)
    start = {name: torch.randn_like(tensor) for name, tensor in objective.model.state_dict().items()}
    received = state.clone(start)
    update = clients_of(objective, client, batch_size=8).train(task_for(start, client_id=5))
    assert list(update.delta) == ["1.weight", "1.bias"]
    for name, tensor in objective.model.state_dict().items():
        assert torch.equal(update.delta[name], tensor - start[name])
        assert update.delta[name].abs().max() > 0
        assert torch.equal(start[name], received[name])  # what the server sent is shared by all clients
    assert (update.client_id, update.num_samples, update.num_steps) == (5, 20, 3)
    assert update.buffers == update.extras == update.memory == {}


def test_the_loss_is_summed_over_the_samples_seen(client, clients_of):
    """With a learning rate of zero the loss stays what it is, and an epoch sees every sample once."""
    objective = ClassificationObjective(linear(), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.0))
    update = clients_of(objective, client, batch_size=8).train(task_for(state.clone(objective.model.state_dict())))
    whole = client.batch(np.arange(20))
    expected = nn.functional.cross_entropy(objective(whole.x), whole.y, reduction="sum").item()
    assert update.metrics["num_seen"] == 20
    assert update.metrics["loss_sum"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("fraction", "amount", "steps"), [(1.0, 10, 10), (0.5, 10, 5), (0.41, 10, 5), (0.01, 10, 1), (1e-9, 1, 1), (0.99, 3, 3)]
)
def test_a_straggler_takes_the_first_steps_of_the_plan(fraction, amount, steps, client, sgd, clients_of):
    """ceil(fraction * steps), at least one; they are the steps that the whole plan begins with."""
    start = linear().state_dict()
    cut, whole = (ClassificationObjective(linear(), optimizer=sgd) for _ in range(2))
    local = {"unit": "steps", "batch_size": 4}
    ours = clients_of(cut, client, amount=amount, **local).train(task_for(start, step_fraction=fraction))
    expected = clients_of(whole, client, amount=steps, **local).train(task_for(start))
    assert ours.num_steps == steps
    assert ours.metrics["num_seen"] == 4 * steps
    assert state.digest(ours.delta) == state.digest(expected.delta)


def test_batches_follow_seed_round_and_client(client, sgd, clients_of):
    """Nothing but (seed, round, client) decides which samples come when."""
    clients = clients_of(ClassificationObjective(linear(), optimizer=sgd), client, batch_size=8)
    start = linear().state_dict()

    def order(seed=0, round=1, client_id=0):
        client.dataset.inputs.fetched.clear()
        clients.train(ClientTask(client_id, round, seed, Broadcast(start)))
        return list(itertools.chain(*client.dataset.inputs.fetched))

    assert order() == order() == rng.stream(0, "batches", 1, 0).permutation(20).tolist()
    assert len({tuple(order(*key)) for key in [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)]}) == 4


def test_gradients_are_clipped_to_their_norm(client, clients_of):
    """A step of plain SGD then is at most lr * max_grad_norm long."""
    objective = ClassificationObjective(linear(), optimizer=lambda ps: torch.optim.SGD(ps, lr=1.0))
    start = linear().state_dict()
    norms = [
        state.norm(clients_of(objective, client, max_grad_norm=bound).train(task_for(start)).delta) for bound in (None, 0.01)
    ]
    assert norms[0] > 0.05
    assert norms[1] == pytest.approx(0.01, rel=1e-3)


def test_frozen_parameters_are_neither_trained_nor_sent(client, sgd, clients_of):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    objective = ClassificationObjective(model, optimizer=sgd)
    start = state.clone(model.state_dict())
    update = clients_of(objective, client).train(task_for(start))
    assert list(update.delta) == ["2.weight", "2.bias"]
    assert torch.equal(model[1].weight, start["1.weight"])


def test_the_optimizer_is_fresh_for_every_client(client, sgd, clients_of):
    """Momentum of the client before would show in the first step of the next."""
    clients = clients_of(ClassificationObjective(linear(), optimizer=sgd), client, batch_size=8)
    start = linear().state_dict()
    first, again = (clients.train(task_for(start)) for _ in range(2))
    assert state.digest(first.delta) == state.digest(again.delta)


# --- modules of other people -----------------------------------------------------------------------------------------------


class Foreign(L.LightningModule):
    """Logs, returns a mapping, has no hooks, and learns something outside its ``model``."""

    def __init__(self):
        super().__init__()
        self.model = linear()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.model(x) / self.temperature

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        return {"loss": loss, "more": 3}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_whatever_a_module_learns_is_federated(client, clients_of):
    """A parameter beside ``model`` would otherwise drift from client to client and be in no checkpoint."""
    objective = Foreign()
    assert not isinstance(objective, ClientHooks)
    start = state.clone(federated_module(objective).state_dict())
    assert set(start) == {"model.1.weight", "model.1.bias", "temperature"}
    clients = clients_of(objective, client, batch_size=4)
    first, again = (clients.train(task_for(start)) for _ in range(2))
    assert first.delta["temperature"].abs() > 1e-4
    assert state.digest(first.delta) == state.digest(again.delta)


def test_the_bare_model_is_federated_where_it_is_all_there_is(small_cnn):
    objective = ClassificationObjective(small_cnn)
    assert federated_module(objective) is small_cnn


class Named(Foreign):
    """Its ``model`` is but a name."""

    def __init__(self):
        super().__init__()
        self.net = self.model
        del self.model
        self.model = "linear"


def test_a_module_whose_model_is_a_name_is_federated_whole():
    objective = Named()
    assert federated_module(objective) is objective


class Tied(nn.Module):
    """One matrix under two names, as in language models."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x.flatten(1)))


def test_tied_weights_move_under_both_their_names(client, sgd, clients_of):
    objective = ClassificationObjective(Tied(), optimizer=sgd)
    start = state.clone(objective.model.state_dict())
    update = clients_of(objective, client).train(task_for(start))
    assert list(update.delta) == ["first.weight"], "sent once"
    program = ClientTrainer(objective)
    after = derive(state.add(start, update.delta), program.derived)
    assert torch.equal(after["first.weight"], after["second.weight"])
    program.load(after)
    assert torch.allclose(objective.model.first.weight, after["first.weight"])
    assert not torch.equal(after["first.weight"], start["first.weight"])


class Several(Foreign):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.Adam(self.parameters())]


def test_several_optimizers_are_refused():
    with pytest.raises(ValueError, match=r"Expected Several.configure_optimizers to return one optimizer, but got 2 of them"):
        single_optimizer(Several())


class Manual(Foreign):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class OfThree(Foreign):
    def training_step(self, batch, batch_idx, dataloader_idx):
        return self(batch.x).sum()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Manual, "Expected Manual to leave the optimizer's steps"),
        (OfThree, "Expected OfThree.training_step to take a batch, and"),
    ],
)
def test_what_a_client_cannot_train_is_refused(kind, message):
    with pytest.raises(ValueError, match=message):
        check_objective(kind())


class Clipping(Foreign):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        pass

    def validation_step(self, batch, batch_idx):
        pass


def test_hooks_that_no_client_calls_are_named(caplog):
    check_objective(Clipping())
    (record,) = caplog.records
    assert "of Clipping, but not its configure_gradient_clipping: what they do is left out" in record.getMessage()


def test_hooks_of_our_own_objectives_are_not_named(caplog):
    check_objective(ReweighingObjective(nn.Linear(6, 2)))
    assert not caplog.records


def test_ours_have_none_of_them(caplog, sgd):
    check_objective(ClassificationObjective(Tied(), optimizer=sgd))
    check_objective(Foreign())
    assert not caplog.records


@pytest.mark.parametrize("output", [torch.tensor(2.0), torch.tensor([2.0]), {"loss": torch.tensor(2.0)}])
def test_a_loss_comes_alone_or_in_a_mapping(output):
    assert take_loss(output).shape == ()
    assert take_loss(output).item() == 2


@pytest.mark.parametrize(
    ("output", "came"),
    [
        (None, "NoneType"),
        (2.0, "float"),
        ({"loss": None}, "NoneType"),
        ({"train_loss": torch.tensor(2.0)}, "NoneType"),
        (torch.ones(28), r"a tensor of shape \(28,\): return a mean"),
    ],
)
def test_no_loss_is_refused(output, came):
    with pytest.raises(ValueError, match=f"Expected `training_step` to return a loss, which is one number, but got {came}"):
        take_loss(output)


# --- buffers ---------------------------------------------------------------------------------------------------------------


def test_buffers_travel_apart_from_parameters_and_counters_stay(client, sgd, clients_of):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 2))
    objective = ClassificationObjective(model, optimizer=sgd)
    start = state.clone(model.state_dict())
    clients = clients_of(objective, client, batch_size=10)
    update = clients.train(task_for(start))
    assert set(update.delta) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert set(update.buffers) == {"1.running_mean", "1.running_var"}
    assert torch.equal(update.buffers["1.running_mean"], model[1].running_mean - start["1.running_mean"])
    again = copy.deepcopy(update)
    twice = clients.train(task_for(start))
    assert state.digest(twice.buffers) == state.digest(again.buffers)


class Fails(Foreign):
    """Fails in its third step, and remembers which steps it was told of."""

    def training_step(self, batch, batch_idx):
        self.told = [*getattr(self, "told", []), batch_idx]
        if len(self.told) == 3:
            raise ZeroDivisionError("no loss")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("begun", [False, True])
def test_an_exception_names_client_round_and_step(client, begun, clients_of):
    clients = clients_of(Fails(), client, batch_size=4)
    task = task_for(state.clone(clients.program.tensors), client_id=4, round=9)
    half = clients.train_part(task, None, 1) if begun else None
    with pytest.raises(ZeroDivisionError, match="no loss") as caught:
        clients.train_part(task, half, None)
    assert caught.value.__notes__ == ["It happened to client 4 in round 9, step 3 of 5."]
    assert clients.objective.told == [0, 1, 2]


class Explodes(Foreign):
    """Its third backward pass fails."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        if batch_idx == 2:
            loss.register_hook(lambda gradient: 1 / 0)
        return loss


def test_an_exception_of_a_backward_pass_does_too_and_the_generators_are_put_back(client, clients_of):
    clients = clients_of(Explodes(), client, batch_size=4)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError) as caught:
        clients.train(task_for(state.clone(clients.program.tensors)))
    assert caught.value.__notes__ == ["It happened to client 0 in round 1, step 3 of 5."]
    assert torch.equal(torch.get_rng_state(), before)
