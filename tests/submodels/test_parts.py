"""A part computes what the whole model does with the other channels silent; averages are over those who hold an entry."""

import copy
import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.aggregators.fednova import FedNova
from fedfacet.aggregators.fedopt import FedOpt
from fedfacet.capacities import GivenCapacity
from fedfacet.models.resnet8 import ResNet8
from fedfacet.models.scaler_cnn import ScalerCNN
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.submodels.base import Submodel
from fedfacet.submodels.channel_sets import ChannelSets
from fedfacet.submodels.parts import Parts
from fedfacet.types import ChannelPlan, ClientUpdate, Facts

MODELS = {
    "scaler_cnn": lambda: ScalerCNN(3, (3, 16, 16), width=4, norm="batch"),
    "scaler_cnn without norm": lambda: ScalerCNN(3, (3, 16, 16), width=4, norm="none", scaler=False),
    "small_cnn": lambda: SmallCNN(3, (3, 16, 16), width=4, hidden=8),
    "resnet8": lambda: ResNet8(3, (3, 16, 16), width=8),
}
RANDOM = ChannelSets(grouping="each", dynamics="every_round", policy="random")
BLOCKS = ChannelSets(grouping="groups", dynamics="fixed", policy="blocks")


def parts_of(model, *, rates=(1, 0.5, 0.5, 0.25), submodel=RANDOM, seed=0):
    return Parts(submodel, GivenCapacity(rates=rates), model.channel_plan, np.full(len(rates), 10), seed)


class Silenced(nn.Module):
    """Leaves some channels and makes the others zero."""

    def __init__(self, layer, channels, number):
        super().__init__()
        self.layer = layer
        self.register_buffer("mask", torch.zeros(number, dtype=torch.float64))
        self.mask[torch.from_numpy(channels)] = 1

    def forward(self, x):
        out = self.layer(x)
        return out * self.mask.view(-1, *[1] * (out.dim() - 2))


def silence(model, channels):
    """Put a mask behind every layer whose outputs are channels of a group; written apart from ``Parts``."""
    model, sizes = copy.deepcopy(model), model.channel_plan.sizes

    def behind(layer, group):
        return Silenced(layer, channels[group], sizes[group])

    body = model.backbone
    if isinstance(model, ScalerCNN):
        for number, place in enumerate((2, 7, 12, 17), 1):
            body[place] = behind(body[place], f"conv{number}")
    elif isinstance(model, SmallCNN):
        for group, place in (("conv1", 0), ("conv2", 3), ("hidden", 7)):
            body[place] = behind(body[place], group)
    else:
        body[1] = behind(body[1], "sum1")
        blocks = [layer for layer in body if isinstance(layer, BasicBlock)]
        for number, block in enumerate(blocks, 1):
            block.bn1, block.bn2 = behind(block.bn1, f"inner{number}"), behind(block.bn2, f"sum{number}")
            if block.downsample is not None:
                block.downsample[1] = behind(block.downsample[1], f"sum{number}")
    return model


@pytest.mark.parametrize("submodel", [RANDOM, BLOCKS], ids=["random", "blocks"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_part_is_the_whole_model_with_the_other_channels_silent(kind, submodel):
    """Forward and gradient, in float64; outside the part the gradient is 0."""
    torch.manual_seed(0)
    model = MODELS[kind]().double().train()
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    parts = parts_of(model, submodel=submodel)
    for client_id, rate in ((1, 0.5), (3, 0.25)):
        small = model.narrowed(parts.sizes(rate)).double().train()
        small.load_state_dict(parts.cut(model.state_dict(), client_id, 2))
        for layer in small.modules():  # activations are scaled for training, not part of this identity
            if hasattr(layer, "rate"):
                layer.rate = 1.0
        masked = silence(model, parts.channels(client_id, 2))
        torch.testing.assert_close(small(x), masked(x), rtol=0, atol=1e-12)
        small(x).square().sum().backward()
        masked(x).square().sum().backward()
        gradients = {name.replace(".layer.", "."): parameter.grad for name, parameter in masked.named_parameters()}
        part = parts.cut(gradients, client_id, 2)
        for name, parameter in small.named_parameters():
            torch.testing.assert_close(parameter.grad, part[name], rtol=0, atol=1e-10)
            assert gradients[name].abs().sum() == pytest.approx(float(part[name].abs().sum()), rel=1e-9), name


@pytest.mark.parametrize("kind", MODELS)
def test_a_plan_names_every_tensor_that_shrinks(kind):
    """What a part is cut to is what a smaller model has, names, shapes and all."""
    model = MODELS[kind]()
    for rate in (0.5, 0.3, 0.01):
        parts = parts_of(model, rates=(rate, 1))
        cut, small = parts.cut(model.state_dict(), 0, 1), model.narrowed(parts.sizes(rate)).state_dict()
        assert {name: tensor.shape for name, tensor in cut.items()} == {name: tensor.shape for name, tensor in small.items()}


def test_whole_clients_get_the_model_itself_and_equal_parts_are_one_object():
    model = SmallCNN(3, (3, 16, 16), width=4, hidden=8)
    weights, parts = (
        model.state_dict(),
        parts_of(model, submodel=ChannelSets(grouping="one", dynamics="fixed", policy="blocks")),
    )
    assert all(parts.cut(weights, 0, 1)[name] is weights[name] for name in weights)
    assert parts.cut(weights, 1, 1) is parts.cut(weights, 2, 1)
    assert parts.cut(weights, 1, 1) is not parts.cut(weights, 3, 1)
    again = {name: tensor + 1 for name, tensor in weights.items()}
    torch.testing.assert_close(parts.cut(again, 1, 1)["head.bias"], weights["head.bias"] + 1)


def test_rates_that_are_drawn_anew_follow_the_round():
    from fedfacet.capacities import ProportionsCapacity

    model = SmallCNN(3, (3, 16, 16), width=4, hidden=8)
    capacity = ProportionsCapacity(rates=[1.0, 0.5], assignment="dynamic")
    parts = Parts(RANDOM, capacity, model.channel_plan, np.full(20, 10), 0)
    first = parts.rates(1)
    assert not np.array_equal(first, parts.rates(2))
    assert np.array_equal(first, parts.rates(1))


# Averages

TINY = ChannelPlan({"a": 4, "b": 6}, {"w": ("b", "a"), "v": ("b",)})
AGGREGATORS = {
    "fedavg": FedAvg,
    "fedavgm": partial(FedAvgM, momentum=0.9, server_lr=0.5),
    "fednova": partial(FedNova, momentum=0.5, server_lr=1.0),
    "fednova by samples": partial(FedNova, momentum=0.5, server_lr=1.0, weighting="samples", tau_eff="steps"),
    "fedadam": partial(FedOpt, second_moment="adam"),
    "fedyogi": partial(FedOpt, second_moment="yogi", weighting="samples"),
    "fedadagrad": partial(FedOpt, second_moment="adagrad"),
}


def update_of(client_id, delta, buffers, generator):
    samples, steps = generator.integers(1, 9, size=2).tolist()
    return ClientUpdate(client_id, delta, buffers, samples, steps, 1.5 * steps, {"loss_sum": 1.0, "num_seen": 4})


def random_round(parts, model, round, generator, clients):
    updates = []
    for client_id in clients:
        cut = parts.cut(model, client_id, round)
        drawn = {name: torch.from_numpy(generator.normal(size=tensor.shape)) for name, tensor in cut.items()}
        updates.append(update_of(client_id, {n: drawn[n] for n in ("w", "head")}, {"v": drawn["v"]}, generator))
    return updates


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_entry_is_aggregated_by_itself_over_its_holders(name):
    """Oracle: for each entry a federation of it alone, whose clients are those who hold it; three rounds, so that state counts.

    In some rounds nobody holds some entries: these keep their value and their momentum.
    """
    make, generator = AGGREGATORS[name], np.random.default_rng(1)
    model = {n: torch.from_numpy(generator.normal(size=shape)) for n, shape in (("w", (6, 4)), ("v", (6,)), ("head", (2,)))}
    parts = Parts(RANDOM, GivenCapacity(rates=[1, 0.5, 0.5, 0.25, 0.25]), TINY, np.full(5, 10), 7)
    facts = Facts(5, model, ("w", "head"), ("v",))
    aggregator = make()
    server, whole = aggregator.init(facts), dict(model)
    entries = [(n, place) for n, tensor in model.items() for place in itertools.product(*map(range, tensor.shape))]
    alone = {}
    for n, place in entries:
        one = {n: model[n][place].reshape(1)}
        kinds = ((n,), ()) if n != "v" else ((), (n,))
        alone[n, place] = (make(), make().init(Facts(5, one, *kinds)), one)
    uncovered = 0
    for round, clients in ((1, [0, 1, 3]), (2, [3, 4]), (3, [2, 4, 1])):
        updates = random_round(parts, whole, round, generator, clients)
        for n, place in entries:
            single, state, one = alone[n, place]
            theirs = []
            for update in updates:
                channels = parts.channels(update.client_id, round)
                axes = TINY.axes.get(n, ())
                at = [
                    (np.arange(size) if channels is None or axis >= len(axes) else channels[axes[axis]]).tolist()
                    for axis, size in enumerate(model[n].shape)
                ]
                if all(p in own for p, own in zip(place, at, strict=True)):
                    here = tuple(own.index(p) for p, own in zip(place, at, strict=True))
                    held = {name: t[here].reshape(1) for name, t in (update.delta | update.buffers).items() if name == n}
                    kinds = (held, {}) if n != "v" else ({}, held)
                    theirs.append(replace(update, delta=kinds[0], buffers=kinds[1]))
            uncovered += not theirs
            if theirs:
                alone[n, place] = (single, *single.aggregate(state, one, theirs))
        server, whole = parts.aggregate(aggregator.aggregate, round, server, whole, iter(updates))
        for (n, place), (_, _, one) in alone.items():
            assert whole[n][place].item() == pytest.approx(one[n].item(), rel=1e-9, abs=1e-12), (round, n, place)
    assert uncovered


@pytest.mark.parametrize("name", AGGREGATORS)
def test_with_everybody_whole_it_is_the_aggregator(name):
    generator = np.random.default_rng(2)
    model = {n: torch.from_numpy(generator.normal(size=shape)) for n, shape in (("w", (6, 4)), ("v", (6,)), ("head", (2,)))}
    parts = Parts(RANDOM, GivenCapacity(rates=[1, 1, 1]), TINY, np.full(3, 10), 7)
    updates = random_round(parts, model, 1, generator, [0, 1, 2])
    aggregator = AGGREGATORS[name](weighting="equal")
    server = aggregator.init(Facts(3, model, ("w", "head"), ("v",)))
    _, plain = aggregator.aggregate(server, model, updates)
    _, ours = parts.aggregate(aggregator.aggregate, 1, server, model, updates)
    for n, tensor in plain.items():
        torch.testing.assert_close(ours[n], tensor, rtol=1e-14, atol=1e-15)


def test_heterofl_by_hand():
    """Two widths, three clients: the corner is everybody's, the rest the two whole clients'."""
    plan = ChannelPlan({"a": 4, "b": 4}, {"w": ("b", "a")})
    parts = Parts(
        ChannelSets(grouping="one", dynamics="fixed", policy="blocks"), GivenCapacity(rates=[1, 1, 0.5]), plan, np.ones(3), 0
    )
    model = {"w": torch.zeros(4, 4)}
    deltas = [torch.full((4, 4), 1.0), torch.full((4, 4), 3.0), torch.full((2, 2), 8.0)]
    updates = [update_of(k, {"w": delta}, {}, np.random.default_rng(0)) for k, delta in enumerate(deltas)]
    _, moved = parts.aggregate(FedAvg().aggregate, 1, {}, model, updates)
    assert moved["w"].tolist() == [[4, 4, 2, 2], [4, 4, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]
    _, moved = parts.aggregate(FedAvg().aggregate, 1, {}, model, updates[2:])
    assert moved["w"].tolist() == [[8, 8, 0, 0], [8, 8, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_uncoupled_inputs_are_cut_on_their_own():
    class Apart(Submodel):
        coupled = False

        def channels(self, holder, sizes):
            return {group: np.array([0, 2]) if group.endswith(" in") else np.array([1, 3]) for group in sizes}

    plan = ChannelPlan({"a": 4, "b": 4}, {"w": ("b", "a"), "v": ("b",)})
    parts = Parts(Apart(), GivenCapacity(rates=[0.5]), plan, np.ones(1), 0)
    cut = parts.cut({"w": torch.arange(16.0).view(4, 4), "v": torch.arange(4.0)}, 0, 1)
    assert cut["w"].tolist() == [[4, 6], [12, 14]]
    assert cut["v"].tolist() == [1, 3]


@pytest.mark.parametrize(("model", "widths"), [(SmallCNN, [4]), (SmallCNN, [4, 0]), (ResNet8, [4, 8]), (ResNet8, [4, 8, 0])])
def test_widths_that_do_not_suit_a_model(model, widths):
    with pytest.raises(ValueError, match=r"model\.width"):
        model(3, (3, 16, 16), width=widths)
