"""Against ``Clients.train``, in double precision, where nothing but the order of sums may differ."""

from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.mobilenetv3 import InvertedResidualConfig

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.vectorized_stack import CannotStackError
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.corrections import Correction, ProximalCorrection
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import InMemoryInputs
from fedfacet.losses import generalized_cross_entropy
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective, cross_entropy
from fedfacet.objectives.moon import MoonObjective
from fedfacet.types import Broadcast, ClientTask

RAGGED = ([[6, 2], [2, 6]], [[1, 2], [2, 0]], [[7, 7], [1, 1]], [[3, 4], [4, 0]], [[2, 1], [1, 1]])
"""Clients of 16, 5, 16, 11 and 5 samples."""

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)


class Counter(nn.Module):
    """Puts a new buffer in the place of the old one instead of writing to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + x.mean()
        return x


NORMS = {"group": lambda: nn.GroupNorm(2, 4), "batch": lambda: nn.BatchNorm2d(4), "counter": Counter}


class Net(nn.Module):
    """Convolution, normalisation and a head; with a frozen tensor, a parameter that is no part of the loss, and a tied one."""

    def __init__(self, norm):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), NORMS[norm](), nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.hidden.weight
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.frozen = nn.Parameter(torch.tensor(1.3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        hidden = self.tied(self.hidden(self.body(x.to(self.scale.dtype))).relu())
        return self.head(hidden * self.scale * self.frozen)


@pytest.fixture
def make_clients(tiny_clients):
    """Return a function that makes clients whose network computes in double precision, or in ``dtype``."""

    def make(norm="group", *, optimizer=SGD, loss=cross_entropy, correction=None, dtype=torch.float64, **more):
        with rng.forked(0, "weights"):
            objective = ClassificationObjective(Net(norm), loss=loss, correction=correction, optimizer=optimizer).to(dtype)
        return tiny_clients(**{"matrices": RAGGED, "local": LocalTraining(batch_size=4), **more}, objective=objective)

    return make


def tasks_of(clients, fractions=None, *, round=3, seed=7):
    broadcast = Broadcast(state.clone(clients.program.module.state_dict()))
    fractions = fractions or [1.0] * clients.partition.num_clients
    return [ClientTask(client, round, seed, broadcast, {}, fraction) for client, fraction in enumerate(fractions)]


def one_by_one(clients, tasks):
    return [clients.train(task) for task in tasks]


def assert_twins(ours, theirs, *, tolerance=1e-10):
    rel = max(tolerance, 1e-12)
    for our, their in zip(ours, theirs, strict=True):
        for name in ("client_id", "num_samples", "num_steps", "step_weight", "extras", "memory"):
            assert getattr(our, name) == getattr(their, name), name
            assert type(getattr(our, name)) is type(getattr(their, name)), name
        assert our.metrics.keys() == their.metrics.keys()
        assert our.metrics["num_seen"] == their.metrics["num_seen"]
        assert our.metrics["loss_sum"] == pytest.approx(their.metrics["loss_sum"], rel=rel)
        for bundle in ("delta", "buffers"):
            assert list(getattr(our, bundle)) == list(getattr(their, bundle))
            for name, tensor in getattr(our, bundle).items():
                expected = getattr(their, bundle)[name]
                assert tensor.dtype == expected.dtype
                assert tensor.device.type == "cpu"
                assert tensor.is_contiguous()
                assert not tensor.requires_grad
                torch.testing.assert_close(tensor, expected, rtol=tolerance, atol=tolerance)


def check(clients, tasks=None, **tolerance):
    tasks = tasks or tasks_of(clients)
    expected = one_by_one(clients, tasks)
    assert all(state.norm(update.delta) > 1e-3 for update in expected)
    updates = StackedTraining(clients).train_clients(tasks)
    assert_twins(updates, expected, **tolerance)
    return updates


LOCAL = {
    "one whole batch": LocalTraining(batch_size=100, amount=1),
    "whole batches": LocalTraining(batch_size=16, amount=3),
    "epochs": LocalTraining(batch_size=3, amount=2),
    "steps": LocalTraining(unit="steps", amount=7, batch_size=4),
    "single samples": LocalTraining(batch_size=1),
    "with replacement": LocalTraining(batch_size=6, amount=2, sampling="with_replacement"),
}


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("matrices", [RAGGED, RAGGED[:1] * 3], ids=["ragged", "even"])
def test_every_kind_of_local_training(local, matrices, make_clients):
    check(make_clients(local=local, matrices=matrices))


def test_clients_that_finish_early_stay_as_they_are(make_clients):
    clients = make_clients(local=LocalTraining(batch_size=4, amount=2))
    updates = check(clients, tasks_of(clients, [0.3, 1.0, 0.01, 0.7, 0.5]))
    assert [update.num_steps for update in updates] == [3, 4, 1, 5, 2]


@pytest.mark.parametrize("local", [LOCAL["one whole batch"], LOCAL["epochs"]], ids=["one whole batch", "epochs"])
def test_images_are_augmented_alike(local, make_clients):
    plain = make_clients(local=local)
    augmented = replace(plain, dataset=replace(plain.dataset, augmentation=CropAndFlip(padding=1)))
    updates = check(augmented)
    unlike = one_by_one(plain, tasks_of(plain))
    assert state.digest(updates[0].delta) != state.digest(unlike[0].delta)


@pytest.mark.parametrize("norm", NORMS)
def test_every_kind_of_normalisation(norm, make_clients):
    updates = check(make_clients(norm))
    expected = {"batch": {"body.1.running_mean", "body.1.running_var"}, "counter": {"body.1.seen"}, "group": set()}
    assert updates[0].buffers.keys() == expected[norm]
    assert all(state.norm(update.buffers) > 1e-3 for update in updates) == (norm != "group")


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "SGD with momentum": SGD,
    "Nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, foreach": partial(SGD, foreach=True),
    "SGD, fused": partial(SGD, fused=True),
    "Adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "Adam, amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "Adam, fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.01, initial_accumulator_value=0.1),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "Adamax": partial(torch.optim.Adamax, lr=0.01),
    "NAdam": partial(torch.optim.NAdam, lr=0.01),
    "RAdam": partial(torch.optim.RAdam, lr=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_that_treats_numbers_by_themselves(optimizer, make_clients):
    check(make_clients(optimizer=optimizer, local=LocalTraining(batch_size=4, amount=2)))


def test_parameter_groups_keep_their_settings(make_clients):
    def optimizer(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": others, "momentum": 0.9}], lr=0.01)

    check(make_clients(optimizer=optimizer))


@pytest.mark.parametrize("optimizer", [SGD, OPTIMIZERS["Adam"]], ids=["SGD", "Adam"])
def test_proximal_correction(optimizer, make_clients):
    with_pull = check(make_clients(optimizer=optimizer, correction=ProximalCorrection(mu=2.0)))
    without = check(make_clients(optimizer=optimizer))
    assert state.norm(state.subtract(with_pull[0].delta, without[0].delta)) > 1e-4


@pytest.mark.parametrize(
    "loss", [cross_entropy, partial(generalized_cross_entropy, q=0.7)], ids=["cross entropy", "generalised"]
)
def test_every_loss(loss, make_clients):
    check(make_clients(loss=loss))


@pytest.mark.parametrize("max_grad_norm", [0.02, 0.3, 1e6])
def test_gradients_are_clipped_per_client(max_grad_norm, make_clients):
    check(
        make_clients(local=LocalTraining(batch_size=4, max_grad_norm=max_grad_norm), optimizer=partial(torch.optim.SGD, lr=0.3))
    )


def test_single_precision_and_channels_last(make_clients):
    clients = make_clients(dtype=torch.float32, optimizer=partial(torch.optim.SGD, lr=0.05))
    check(clients, tolerance=1e-5)
    clients.objective.to(memory_format=torch.channels_last)
    check(replace(clients, memory_format=torch.channels_last), tolerance=1e-5)


def test_half_precision(make_clients):
    clients = make_clients(dtype=torch.float32, optimizer=partial(torch.optim.SGD, lr=0.05))
    whole = StackedTraining(clients).train_clients(tasks_of(clients))
    half = check(replace(clients, precision="bf16-mixed"), tolerance=3e-3)
    assert state.norm(state.subtract(half[0].delta, whole[0].delta)) > 1e-4


def test_a_round_leaves_nothing_behind(make_clients):
    clients = make_clients("batch", correction=ProximalCorrection(mu=1.0))
    training, tasks = StackedTraining(clients), tasks_of(clients)
    before = state.digest(tasks[0].broadcast.model)
    first = training.train_clients(tasks)
    training.train_clients([ClientTask(4, 9, 9, Broadcast(state.scaled(tasks[0].broadcast.model, 1.5)))])
    assert_twins(training.train_clients(tasks), first, tolerance=0)
    assert_twins(one_by_one(clients, tasks), first)
    assert state.digest(tasks[0].broadcast.model) == before


def test_the_global_generator_is_left_alone(make_clients):
    clients = make_clients()
    tasks = tasks_of(clients)
    before = torch.get_rng_state()
    StackedTraining(clients).train_clients(tasks)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_objective_that_learns_more_than_its_model(make_clients):
    class Tempered(ClassificationObjective):
        def __init__(self, model):
            super().__init__(model, optimizer=lambda _: SGD(self.parameters()))
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.model(x) * self.temperature

    updates = check(replace(make_clients(), objective=Tempered(Net("group")).double()))
    assert {"temperature", "model.head.weight"} <= updates[0].delta.keys()


def test_batches_that_do_not_change_are_fetched_once(make_clients):
    clients = make_clients(local=LocalTraining(batch_size=16, amount=5), matrices=RAGGED[:1] * 3)
    fetched = []

    class Counting(InMemoryInputs):
        def fetch(self, indices):
            fetched.append(len(indices))
            return super().fetch(indices)

    dataset = replace(clients.dataset, inputs=Counting(clients.dataset.inputs.tensor))
    StackedTraining(replace(clients, dataset=dataset)).train_clients(tasks_of(clients))
    assert fetched == [48]


@settings(max_examples=30)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.floats(0.05, 1.0)), min_size=1, max_size=5),
    batch_size=st.integers(1, 10),
    unit=st.sampled_from(["epochs", "steps"]),
    amount=st.integers(1, 3),
    sampling=st.sampled_from(["with_replacement", "without_replacement"]),
    max_grad_norm=st.sampled_from([None, 0.1]),
    correction=st.sampled_from([None, ProximalCorrection(mu=1.0)]),
    momentum=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 2**31),
)
def test_any_small_federation(
    sizes, batch_size, unit, amount, sampling, max_grad_norm, correction, momentum, seed, tiny_clients
):
    local = LocalTraining(unit=unit, amount=amount, batch_size=batch_size, sampling=sampling, max_grad_norm=max_grad_norm)
    with rng.forked(seed, "weights"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    objective = ClassificationObjective(
        model, correction=correction, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=momentum)
    )
    clients = tiny_clients(matrices=[[[size, 0], [0, 1]] for size, _ in sizes], objective=objective, local=local)
    tasks = tasks_of(clients, [fraction for _, fraction in sizes], seed=seed)
    assert_twins(StackedTraining(clients).train_clients(tasks), one_by_one(clients, tasks), tolerance=2e-5)


# What clients have of their own


def test_extras_that_are_the_same_for_all_are_no_hindrance(make_clients):
    clients = make_clients()
    extras = {"c": torch.ones(2)}
    tasks = [ClientTask(task.client_id, 1, 1, Broadcast(task.broadcast.model, dict(extras))) for task in tasks_of(clients)]
    check(clients, tasks)


class Anchored(Correction):
    """Looks at all that a client is told, draws, and sends and keeps something."""

    def on_client_start(self, parameters, start):
        self.pull = {name: start.memory.get(name, torch.zeros_like(p)) + start.num_steps for name, p in parameters.items()}
        self.luck = torch.rand(())
        self.lr = start.lr

    def forward(self, parameters):
        return self.luck * sum((parameters[name] * pull).sum() for name, pull in self.pull.items())

    def on_client_end(self, end):
        return {"luck": self.luck}, {name: 0.1 * moved * end.lr for name, moved in end.delta.items()}


def test_each_client_has_its_own_start_memory_and_learning_rate(make_clients):
    """Three kinds, so three stacks: those with a memory, those without, and those of another learning rate."""
    clients = make_clients(correction=Anchored())
    kinds = []
    for number, task in enumerate(tasks_of(clients)):
        memory = {name: (number + 1) * torch.ones_like(p) for name, p in clients.objective.trainable.items()}
        kept = {} if number < 2 else memory
        model = task.broadcast.model if number % 2 else state.scaled(task.broadcast.model, 1.0 + number)
        changed = replace(task, memory=kept, broadcast=Broadcast(model), lr_factor=0.5 if number == 4 else 1.0)
        kinds.append(changed)
    ours, theirs = StackedTraining(clients).train_clients(kinds), one_by_one(clients, kinds)
    for our, their in zip(ours, theirs, strict=True):
        for name in ("delta", "extras", "memory"):
            for key, tensor in getattr(their, name).items():
                torch.testing.assert_close(getattr(our, name)[key], tensor, rtol=1e-12, atol=1e-13)


def test_clients_with_and_without_a_last_model_of_moon(tiny_clients):
    """Two kinds, of which one has noted no tensor: it must not train beside the other's last model."""
    with rng.forked(0, "weights"):
        model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
    clients = tiny_clients(matrices=RAGGED[:4], objective=MoonObjective(model, mu=5.0), local=LocalTraining(batch_size=4))
    plain = tasks_of(clients)
    kept = {f"moon/{name}": 2 * tensor for name, tensor in plain[0].broadcast.model.items()}
    tasks = [replace(task, memory=kept if task.client_id >= 2 else {}) for task in plain]
    ours, theirs = StackedTraining(clients).train_clients(tasks), one_by_one(clients, tasks)
    for our, their in zip(ours, theirs, strict=True):
        for key, tensor in their.delta.items():
            torch.testing.assert_close(our.delta[key], tensor, rtol=1e-3, atol=1e-6)


OTHERS = {
    "torchvision's mobilenet_v3": lambda: torchvision.models.MobileNetV3(
        [InvertedResidualConfig(8, 3, 16, 8, use_se=True, activation="HS", stride=1, dilation=1, width_mult=1.0)],
        last_channel=16,
        num_classes=2,
        norm_layer=partial(nn.GroupNorm, 1),
    ),
    "torchvision's convnext": lambda: torchvision.models.ConvNeXt(
        [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 2)], stochastic_depth_prob=0.5, num_classes=2
    ),
    "torchvision's vit": lambda: torchvision.models.VisionTransformer(8, 4, 2, 2, 8, 16, dropout=0.3, num_classes=2),
    "torchvision's swin": lambda: torchvision.models.SwinTransformer(
        [2, 2], 8, [1, 1], [2, 2], [2, 2], dropout=0.2, attention_dropout=0.2, stochastic_depth_prob=0.5, num_classes=2
    ),
    "timm's test_vit": lambda: timm.create_model("test_vit", num_classes=2, img_size=32, drop_rate=0.2, drop_path_rate=0.5),
    "timm's test_convnext": lambda: timm.create_model("test_convnext", num_classes=2, drop_rate=0.2, drop_path_rate=0.5),
    "timm's test_efficientnet": lambda: timm.create_model(
        "test_efficientnet_gn", num_classes=2, drop_rate=0.2, drop_path_rate=0.3
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_networks_of_other_libraries(name, tiny_clients):
    """With dropout, stochastic depth, attention, group and layer normalisation, in double precision."""

    class Larger(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            size = 8 if "vit's" in name or name.endswith(" vit") else 32
            return self.network(functional.interpolate(x.double().expand(-1, 3, -1, -1), size=size))

    with rng.forked(0, "weights"):
        objective = ClassificationObjective(Larger(OTHERS[name]()), optimizer=SGD).double()
    clients = tiny_clients(matrices=RAGGED[:3], objective=objective, local=LocalTraining(batch_size=4, unit="steps", amount=3))
    tasks = tasks_of(clients)
    ours, theirs = StackedTraining(clients).train_clients(tasks), one_by_one(clients, tasks)
    for our, their in zip(ours, theirs, strict=True):
        assert our.metrics["loss_sum"] == pytest.approx(their.metrics["loss_sum"], rel=1e-12)
        scale = max(float(tensor.abs().max()) for tensor in their.delta.values())
        for key, tensor in their.delta.items():
            torch.testing.assert_close(our.delta[key], tensor, rtol=0, atol=1e-11 * scale)


# What is refused


def test_an_optimizer_that_mixes_numbers_is_refused(make_clients):
    class Normalised(torch.optim.SGD):
        pass

    for optimizer in (Normalised, torch.optim.LBFGS):
        clients = make_clients(optimizer=optimizer)
        with pytest.raises(CannotStackError, match=optimizer.__name__):
            StackedTraining(clients).train_clients(tasks_of(clients))
