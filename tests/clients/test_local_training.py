import copy
import itertools
import math
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from fedfacet.clients.workbench import ClientHooks, Workbench, federated_module, take_loss
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining, train_client, train_part
from fedfacet.clients.optimizers import single_optimizer
from fedfacet.corrections.base import Correction
from fedfacet.corrections.proximal import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Broadcast, ClientTask


@pytest.mark.parametrize(
    ("num_samples", "steps"), [(100, 4), (156, 6), (166, 6), (200, 8), (492, 18), (496, 18), (28, 1), (29, 2), (1, 1)]
)
def test_an_epoch_keeps_the_last_short_batch(num_samples, steps):
    """The papers' client sizes at batch size 28: ceil(n_k / 28) steps."""
    assert LocalTraining(batch_size=28).num_steps(num_samples) == steps
    assert LocalTraining(batch_size=28, amount=3).num_steps(num_samples) == 3 * steps


def test_steps_are_steps_whatever_the_client_holds():
    local = LocalTraining(unit="steps", amount=5, batch_size=28)
    assert {local.num_steps(num_samples) for num_samples in (1, 28, 1000)} == {5}


def epochs_of(local, num_samples, epochs):
    per_epoch = math.ceil(num_samples / local.batch_size)
    stream = local.batches(num_samples, partial(rng.stream, 0, "test"))
    return [list(itertools.islice(stream, per_epoch)) for _ in range(epochs)]


def test_without_replacement_every_sample_comes_once_an_epoch_in_new_order():
    epochs = epochs_of(LocalTraining(batch_size=28), 200, 3)
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [28] * 7 + [4]
        assert sorted(np.concatenate(epoch)) == list(range(200))
    assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))


def test_with_replacement_an_epoch_draws_as_many_samples_as_there_are():
    epochs = epochs_of(LocalTraining(batch_size=28, sampling="with_replacement"), 200, 50)
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [28] * 7 + [4]
    distinct = [len(set(np.concatenate(epoch))) for epoch in epochs]
    assert np.mean(distinct) == pytest.approx(200 * (1 - (1 - 1 / 200) ** 200), rel=0.02)  # about 1 - 1/e of them
    assert np.bincount(np.concatenate([np.concatenate(epoch) for epoch in epochs])).min() > 20  # of 50 expected


def test_a_client_without_samples_is_refused_and_not_waited_for():
    with pytest.raises(ValueError, match="Expected a client to hold at least one sample"):
        next(LocalTraining().batches(0, partial(rng.stream, 0, "test")))


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


# --- train_client ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tabular):
    draw = np.random.default_rng(0)
    return tabular(draw.integers(0, 256, size=(20, 6)), [0, 1] * 10)


@pytest.fixture
def sgd():
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def linear():
    with rng.forked(0, "weights"):
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))


def task_for(model, **settings):
    return ClientTask(settings.pop("client_id", 0), settings.pop("round", 1), 0, Broadcast(model), **settings)


def test_an_update_is_local_minus_broadcast(client, sgd):
    objective = ClassificationObjective(linear(), optimizer=sgd)
    start = {name: torch.randn_like(tensor) for name, tensor in objective.model.state_dict().items()}
    received = state.clone(start)
    update = train_client(Workbench(objective), client, task_for(start, client_id=5), LocalTraining(batch_size=8))
    assert list(update.delta) == ["1.weight", "1.bias"]
    for name, tensor in objective.model.state_dict().items():
        assert torch.equal(update.delta[name], tensor - start[name])
        assert update.delta[name].abs().max() > 0
        assert torch.equal(start[name], received[name])  # what the server sent is shared by all clients
    assert (update.client_id, update.num_samples, update.num_steps) == (5, 20, 3)
    assert update.buffers == update.extras == update.memory == {}


def test_the_loss_is_summed_over_the_samples_seen(client):
    """With a learning rate of zero the loss stays what it is, and an epoch sees every sample once."""
    objective = ClassificationObjective(linear(), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.0))
    update = train_client(
        Workbench(objective), client, task_for(state.clone(objective.model.state_dict())), LocalTraining(batch_size=8)
    )
    whole = client.batch(np.arange(20))
    expected = nn.functional.cross_entropy(objective(whole.x), whole.y, reduction="sum").item()
    assert update.metrics["num_seen"] == 20
    assert update.metrics["loss_sum"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("fraction", "amount", "steps"), [(1.0, 10, 10), (0.5, 10, 5), (0.41, 10, 5), (0.01, 10, 1), (1e-9, 1, 1), (0.99, 3, 3)]
)
def test_a_straggler_takes_the_first_steps_of_the_plan(fraction, amount, steps, client, sgd):
    """ceil(fraction * steps), at least one; they are the steps that the whole plan begins with."""
    start = linear().state_dict()
    cut, whole = (ClassificationObjective(linear(), optimizer=sgd) for _ in range(2))
    ours = train_client(
        Workbench(cut),
        client,
        task_for(start, step_fraction=fraction),
        LocalTraining(unit="steps", amount=amount, batch_size=4),
    )
    expected = train_client(Workbench(whole), client, task_for(start), LocalTraining(unit="steps", amount=steps, batch_size=4))
    assert ours.num_steps == steps
    assert ours.metrics["num_seen"] == 4 * steps
    assert state.digest(ours.delta) == state.digest(expected.delta)


def test_batches_follow_seed_round_and_client(client, sgd):
    """Nothing but (seed, round, client) decides which samples come when."""
    objective = ClassificationObjective(linear(), optimizer=sgd)
    start = linear().state_dict()

    def order(seed=0, round=1, client_id=0):
        client.dataset.inputs.fetched.clear()
        train_client(
            Workbench(objective), client, ClientTask(client_id, round, seed, Broadcast(start)), LocalTraining(batch_size=8)
        )
        return list(itertools.chain(*client.dataset.inputs.fetched))

    assert order() == order() == rng.stream(0, "batches", 1, 0).permutation(20).tolist()
    assert len({tuple(order(*key)) for key in [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)]}) == 4


def test_gradients_are_clipped_to_their_norm(client):
    """A step of plain SGD then is at most lr * max_grad_norm long."""
    objective = ClassificationObjective(linear(), optimizer=lambda ps: torch.optim.SGD(ps, lr=1.0))
    start = linear().state_dict()
    norms = [
        state.norm(train_client(Workbench(objective), client, task_for(start), LocalTraining(max_grad_norm=bound)).delta)
        for bound in (None, 0.01)
    ]
    assert norms[0] > 0.05
    assert norms[1] == pytest.approx(0.01, rel=1e-3)


def test_frozen_parameters_are_neither_trained_nor_sent(client, sgd):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    objective = ClassificationObjective(model, optimizer=sgd)
    start = state.clone(model.state_dict())
    update = train_client(Workbench(objective), client, task_for(start), LocalTraining())
    assert list(update.delta) == ["2.weight", "2.bias"]
    assert torch.equal(model[1].weight, start["1.weight"])


def test_the_optimizer_is_fresh_for_every_client(client, sgd):
    """Momentum of the client before would show in the first step of the next."""
    objective = ClassificationObjective(linear(), optimizer=sgd)
    start = linear().state_dict()
    first = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=8))
    again = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=8))
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


def test_whatever_a_module_learns_is_federated(client):
    """A parameter beside ``model`` would otherwise drift from client to client and be in no checkpoint."""
    objective = Foreign()
    assert not isinstance(objective, ClientHooks)
    start = state.clone(federated_module(objective).state_dict())
    assert set(start) == {"model.1.weight", "model.1.bias", "temperature"}
    first = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=4))
    again = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=4))
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


def test_tied_weights_move_under_both_their_names(client, sgd):
    objective = ClassificationObjective(Tied(), optimizer=sgd)
    start = state.clone(objective.model.state_dict())
    update = train_client(Workbench(objective), client, task_for(start), LocalTraining())
    after = state.add(start, update.delta)
    assert torch.equal(after["first.weight"], after["second.weight"])
    Workbench(objective).load(after)
    assert torch.allclose(objective.model.first.weight, after["first.weight"])
    assert not torch.equal(after["first.weight"], start["first.weight"])


class Schedules(Foreign):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]


def test_schedulers_and_several_optimizers_are_refused():
    with pytest.raises(ValueError, match=r"Expected Schedules.configure_optimizers to return one optimizer, but got tuple"):
        single_optimizer(Schedules())


@pytest.mark.parametrize("output", [torch.tensor(2.0), {"loss": torch.tensor(2.0)}])
def test_a_loss_comes_alone_or_in_a_mapping(output):
    assert take_loss(output).item() == 2


@pytest.mark.parametrize("output", [None, 2.0, {"loss": None}])
def test_no_loss_is_refused(output):
    with pytest.raises(ValueError, match="Expected `training_step` to return a loss, but got"):
        take_loss(output)


# --- buffers ---------------------------------------------------------------------------------------------------------------


def test_buffers_travel_apart_from_parameters_and_counters_stay(client, sgd):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 2))
    objective = ClassificationObjective(model, optimizer=sgd)
    start = state.clone(model.state_dict())
    update = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=10))
    assert set(update.delta) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert set(update.buffers) == {"1.running_mean", "1.running_var"}
    assert torch.equal(update.buffers["1.running_mean"], model[1].running_mean - start["1.running_mean"])
    again = copy.deepcopy(update)
    twice = train_client(Workbench(objective), client, task_for(start), LocalTraining(batch_size=10))
    assert state.digest(twice.buffers) == state.digest(again.buffers)


# --- put down and taken up -------------------------------------------------------------------------------------------------


class Drawing(nn.Module):
    """Draws random numbers, and has running statistics and a counter that only its buffers carry from step to step."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(5, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + x.mean()  # a new tensor in the place of the old one
        return self.head(self.dropout(self.norm(self.first(x.flatten(1))))) * (1 + self.seen)


DIVIDED = {
    "sgd": {"optimizer": partial(torch.optim.SGD, lr=0.1)},
    "sgd with momentum": {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)},
    "adam": {"optimizer": partial(torch.optim.Adam, lr=0.01, amsgrad=True)},
    "fused adam": {"optimizer": partial(torch.optim.AdamW, lr=0.01, fused=True)},
    "dropout and batch norm": {"model": Drawing},
    "proximal": {"correction": partial(ProximalCorrection, mu=1.0)},
    "clipped": {"local": {"max_grad_norm": 0.05}},
    "straggler": {"step_fraction": 0.6},
    "steps": {"local": {"unit": "steps", "amount": 7, "batch_size": 30}},
    "with replacement": {"local": {"sampling": "with_replacement"}},
    "all at once": {
        "model": Drawing,
        "optimizer": partial(torch.optim.Adam, lr=0.01),
        "correction": ProximalCorrection,
        "local": {"amount": 3, "max_grad_norm": 0.5},
        "step_fraction": 0.7,
    },
}


def fresh_bench(number=0, *, model=linear, correction=lambda: None, optimizer=None):
    """Return a bench of its own, as another process has it; its weights are no client's."""
    with rng.forked(number, "weights"):
        return Workbench(ClassificationObjective(model(), correction=correction(), optimizer=optimizer))


def in_parts(benches, cuts, client, task, local):
    half = None
    for bench, stop in zip(benches, cuts, strict=False):
        torch.rand(3)  # whatever else that process does
        half = train_part(bench, client, task, local, half=half, stop=stop)
        assert (half.num_steps, half.num_seen) == (stop, sum(map(len, itertools.islice(plan_of(local, client, task), stop))))
    return train_part(benches[-1], client, task, local, half=half)


def plan_of(local, client, task):
    return local.batches(len(client), partial(rng.stream, task.seed, "batches", task.round, task.client_id))


def assert_same_update(ours, expected):
    for name in ("delta", "buffers", "extras", "memory"):
        assert list(getattr(ours, name)) == list(getattr(expected, name))
        assert state.digest(getattr(ours, name)) == state.digest(getattr(expected, name)), name
    for name in ("client_id", "num_samples", "num_steps", "step_weight", "metrics"):
        assert getattr(ours, name) == getattr(expected, name), name


@pytest.mark.parametrize("settings", DIVIDED.values(), ids=DIVIDED)
def test_put_down_after_any_step_and_taken_up_elsewhere_the_update_is_the_same(settings, client):
    settings = dict(settings)
    local = LocalTraining(**{"batch_size": 7, "amount": 2} | settings.pop("local", {}))
    fraction = settings.pop("step_fraction", 1.0)
    benches = [fresh_bench(number, **settings) for number in range(3)]
    assert all(bench.divisible for bench in benches)
    task = task_for(state.clone(fresh_bench(7, **settings).tensors), client_id=3, step_fraction=fraction)
    with rng.forked(0, "test"):
        expected = train_client(benches[0], client, task, local)
        num_steps = expected.num_steps
        assert num_steps >= 4
        for cut in range(1, num_steps):
            assert_same_update(in_parts(benches[1:], [cut], client, task, local), expected)
        for cuts in itertools.combinations(range(1, num_steps), 2):
            assert_same_update(in_parts(benches, cuts, client, task, local), expected)


def test_the_steps_are_spread_over_the_parts_and_none_is_taken_twice(client):
    local = LocalTraining(batch_size=7, amount=2)
    benches = [fresh_bench(number) for number in range(2)]
    task = task_for(state.clone(benches[0].tensors))
    in_parts(benches, [2], client, task, local)
    planned = [batch.tolist() for batch in itertools.islice(plan_of(local, client, task), 6)]
    assert client.dataset.inputs.fetched == planned


def test_a_half_trained_client_shares_no_memory_with_the_bench(client):
    bench = fresh_bench()
    task = task_for(state.clone(bench.tensors))
    half = train_part(bench, client, task, LocalTraining(batch_size=7), stop=1)
    before = state.digest(half.weights)
    train_client(bench, client, task_for(task.broadcast.model, client_id=1), LocalTraining(batch_size=7))
    assert state.digest(half.weights) == before != state.digest(task.broadcast.model)


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.01)])
def test_a_half_trained_client_may_be_taken_up_twice(client, optimizer):
    """As it is where whoever went on with it died."""
    bench, local = fresh_bench(model=Drawing, optimizer=optimizer), LocalTraining(batch_size=7, amount=2)
    task = task_for(state.clone(bench.tensors))
    half = train_part(bench, client, task, local, stop=2)
    first, second = (train_part(bench, client, task, local, half=half) for _ in range(2))
    assert_same_update(second, first)


def test_torchs_generators_are_put_back_when_training_is_put_down_and_taken_up(client):
    bench = fresh_bench(model=Drawing)
    task = task_for(state.clone(bench.tensors))
    before = torch.get_rng_state()
    half = train_part(bench, client, task, LocalTraining(batch_size=7), stop=1)
    assert torch.equal(torch.get_rng_state(), before)
    train_part(bench, client, task, LocalTraining(batch_size=7), half=half)
    assert torch.equal(torch.get_rng_state(), before)


class Forgetful(nn.Module):
    """Keeps in each client what no state dict holds."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
        self.flatten[0].register_buffer("hidden", torch.zeros(2), persistent=False)


class Undivided(Correction):
    divisible = False


@pytest.mark.parametrize(
    ("objective", "divisible"),
    [
        (lambda: ClassificationObjective(linear()), True),
        (lambda: ClassificationObjective(Drawing()), True),
        (lambda: ClassificationObjective(linear(), correction=ProximalCorrection()), True),
        (lambda: ClassificationObjective(linear(), correction=Undivided()), False),
        (lambda: ClassificationObjective(Forgetful()), False),
        (Foreign, False),
    ],
    ids=["linear", "buffers", "proximal", "undivided correction", "hidden buffer", "foreign"],
)
def test_only_what_can_be_carried_along_is_divided(objective, divisible):
    assert Workbench(objective()).divisible is divisible


def test_a_buffer_in_a_new_place_is_followed(client, sgd):
    """Its change is that of its last tensor, and the next client starts from what the server sent."""
    objective = ClassificationObjective(Drawing(), optimizer=sgd)
    bench, local = Workbench(objective), LocalTraining(batch_size=7)
    start = state.clone(bench.tensors)
    start["seen"] = torch.tensor(0.5)
    means = [client.batch(positions).x.mean() for positions in itertools.islice(plan_of(local, client, task_for(start)), 3)]
    updates = [train_client(bench, client, task_for(start), local) for _ in range(2)]
    for update in updates:
        torch.testing.assert_close(update.buffers["seen"], sum(means), rtol=1e-4, atol=1e-6)
    assert updates[0].buffers["seen"] != 0
    assert_same_update(updates[1], updates[0])
    bench.load(start)
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
def test_no_client_sees_what_another_left_in_a_hidden_buffer(in_place, client, sgd):
    bench, local = Workbench(ClassificationObjective(Counting(in_place), optimizer=sgd)), LocalTraining(batch_size=7)
    start = state.clone(bench.tensors)
    updates = [train_client(bench, client, task_for(start), local) for _ in range(2)]
    assert_same_update(updates[1], updates[0])


class Fails(Foreign):
    """Fails in its third step, and remembers which steps it was told of."""

    def training_step(self, batch, batch_idx):
        self.told = [*getattr(self, "told", []), batch_idx]
        if len(self.told) == 3:
            raise ZeroDivisionError("no loss")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("begun", [False, True])
def test_an_exception_names_client_round_and_step(client, begun):
    bench, local = Workbench(Fails()), LocalTraining(batch_size=4)
    task = task_for(state.clone(bench.tensors), client_id=4, round=9)
    half = train_part(bench, client, task, local, stop=1) if begun else None
    with pytest.raises(ZeroDivisionError, match="no loss") as caught:
        train_part(bench, client, task, local, half=half)
    assert caught.value.__notes__ == ["It happened to client 4 in round 9, step 3 of 5."]
    assert bench.objective.told == [0, 1, 2]


class Explodes(Foreign):
    """Its third backward pass fails."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        if batch_idx == 2:
            loss.register_hook(lambda gradient: 1 / 0)
        return loss


def test_an_exception_of_a_backward_pass_does_too_and_the_generators_are_put_back(client):
    bench = Workbench(Explodes())
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError) as caught:
        train_client(bench, client, task_for(state.clone(bench.tensors)), LocalTraining(batch_size=4))
    assert caught.value.__notes__ == ["It happened to client 0 in round 1, step 3 of 5."]
    assert torch.equal(torch.get_rng_state(), before)
