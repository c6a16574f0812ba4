"""What is found before round 1, by one step on the smallest batch that any client has."""

import logging
import random
from collections import deque
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn

from fedfacet import FedAvg, LocalTraining, dataset_from_arrays, deal, federate, state
from fedfacet.errors import ConfigError
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition


class Sizes(Partitioner):
    uses_all_samples = False

    def __init__(self, *sizes):
        self.sizes, self.num_clients, self.seed = sizes, len(sizes), 0

    def partition(self, y, a):
        ends = np.cumsum(self.sizes)
        return Partition(tuple(np.arange(end - size, end) for size, end in zip(self.sizes, ends, strict=True)))


def data(*sizes):
    x = np.random.default_rng(0).normal(size=(3 * sum(sizes) + 60, 4)).astype("float32")
    return deal(dataset_from_arrays(x, (x[:, 0] > 0).astype(int)), Sizes(*(sizes or (20, 20))))


def after(net, *sizes, **more):
    torch.manual_seed(0)
    federation = federate(data(*sizes), net, optimizer=partial(torch.optim.SGD, lr=0.1), rounds=1, **more)
    federation.run_round()
    return state.digest(federation.state.model)


class Net(nn.Module):
    """A linear layer, and what a test adds to it."""

    def __init__(self, forward=lambda net, x: net.layer(x), **attributes):
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 2), forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.passes(self, x)


def normalised():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("sizes", "local", "told"),
    [
        ((28, 29), {"batch_size": 28}, r"one of client 1's 29 samples is left over .* local.batch_size=28"),
        ((28, 1), {"batch_size": 28}, r"one of client 1's 1 samples is its only one"),
        ((4, 6), {"batch_size": 1}, r"local.batch_size=1"),
        ((57, 30), {"batch_size": 28, "unit": "steps", "amount": 3}, r"one of client 0's 57 samples"),
    ],
)
def test_a_batch_of_one_is_refused_where_a_layer_cannot_take_it(sizes, local, told):
    with pytest.raises(ConfigError, match=told):
        federate(data(*sizes), normalised(), local=LocalTraining(**local))
    federate(data(*sizes), nn.Linear(4, 2), local=LocalTraining(**local))


def test_a_remainder_that_no_client_reaches_is_no_reason():
    after(normalised(), 29, 28, local=LocalTraining(batch_size=28, unit="steps", amount=1))


def counts(net, x):
    net.step = net.step + 1
    return net.layer(x) / (1 + 0.1 * net.step)


def averages(net, x):
    if net.training:
        net.mean = 0.9 * net.mean + 0.1 * x.mean(0)
        return net.layer(x - x.mean(0))
    return net.layer(x - net.mean)


def remembers(net, x):
    net.last.append(x.mean(0).detach())
    return net.layer(x - sum(net.last) / len(net.last) * (0.1 if len(net.last) > 1 else 1.0))


def draws(net, x):
    draw = net.generator.gauss if isinstance(net.generator, random.Random) else net.generator.normal
    return net.layer(x + float(draw(0.0, 1.0)) * net.training)


NUMBER = {"of module": 0}


def counts_elsewhere(net, x):
    NUMBER["of module"] += 1
    return net.layer(x) / NUMBER["of module"]


def rarely_counts(net, x):
    net.step += 1
    return net.layer(x) if net.step < 1000 else 2 * net.layer(x)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (Net(counts, step=0), "'step'"),
        (Net(rarely_counts, step=0), "'step'"),
        (Net(counts, step=torch.zeros(1)), "'step'"),
        (Net(averages, mean=torch.zeros(4)), "'mean'"),
        (Net(remembers, last=deque(maxlen=5)), "'last'"),
        (Net(remembers, last=[]), "'last'"),
        (Net(draws, generator=np.random.default_rng(0)), "'generator'"),
        (Net(draws, generator=random.Random(0), scale=0.1), "'generator'"),
        (Net(counts_elsewhere), "something"),
        (nn.Sequential(Net(counts, step=0)), "'0.step'"),
    ],
)
def test_state_in_plain_attributes_is_refused_by_name(net, named):
    with pytest.raises(ConfigError, match=f"keeps {named} elsewhere"):
        federate(data(), net)


def caches(net, x):
    net.last = net.layer(x)
    return net.last


def records(net, x):
    net.seen.append(float(x.mean()))
    return net.layer(x)


class Logs(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.accuracy = nn.Linear(4, 2), torchmetrics.classification.BinaryAccuracy()
        self.losses = []

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        z = self(batch.x)
        self.accuracy(z.argmax(dim=1), batch.y)
        self.losses.append(nn.functional.cross_entropy(z, batch.y))
        return self.losses[-1]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "make",
    [
        partial(Net, caches),
        lambda: Net(records, seen=[]),
        Logs,
        lambda: nn.utils.spectral_norm(nn.Linear(4, 2)),
        lambda: Net(scale=nn.Parameter(torch.tensor(1.0)), empty=nn.Parameter(torch.zeros(0, 3))),
        lambda: Net(layer=nn.Linear(4, 2), nothing=nn.Buffer(torch.zeros(2).to(torch.float8_e4m3fn))),
        lambda: Net(lambda net, x: net.layer(net.rnn(x[..., None])[0][:, -1]), rnn=nn.LSTM(1, 4, batch_first=True)),
        lambda: Net(lambda net, x: net.layer(x.double()), layer=nn.Linear(4, 2).double()),
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)),
    ],
)
def test_what_carries_nothing_over_trains(make):
    after(make())


def test_the_trial_leaves_no_trace(caplog):
    torch.manual_seed(0)
    net = Net(records, seen=[])
    weights, draw = state.clone(net.state_dict()), torch.get_rng_state()
    federate(data(), net)
    assert net.seen == []
    assert state.digest(net.state_dict()) == state.digest(weights)
    assert torch.equal(torch.get_rng_state(), draw)
    assert not caplog.records


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(2, 4)
        self.b.weight = nn.Parameter(self.a.weight.t())


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"a": 1}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (nn.Sequential(nn.LazyLinear(2)), r"'0.weight' of Sequential has no shape yet: run it once on a batch first"),
        (nn.Linear(4, 2).requires_grad_(False), "a network with weights to train, but Linear has no"),
        (nn.BatchNorm1d(4, affine=False), "a network with weights to train"),
        (nn.Linear(4, 2, device="meta"), "'weight' of Linear is on the device meta"),
        (nn.Linear(4, 2, dtype=torch.complex64), "'weight' of Linear is torch.complex64"),
        (nn.Linear(4, 2, dtype=torch.float16), "Linear to take inputs of shape"),
        (Net(scale=nn.Parameter(torch.ones(1).expand(2))), "'scale' of Net shares some"),
        (Shared(), r"'b.weight' of Shared shares some with 'a.weight'"),
        (Extra(4, 2), "'_extra_state' is missing or no tensor"),
        (Net(lambda net, x: (net.layer(x),) if net.training else net.layer(x)), "it returns a tuple"),
        (Net(lambda net, x: {"z": net.layer(x)}), "it returns a dict"),
        (Net(lambda net, x: net.layer(x).detach()), "it has no gradient"),
        (Net(lambda net, x: net.layer(x) / 0 * 0), "that of Net is NaN"),
        (Net(lambda net, x: net.layer(x) if not net.training else {}["oh"]), r"fails at them \(KeyError: 'oh'\)"),
    ],
)
def test_what_cannot_train_is_refused_in_a_sentence(net, told):
    with pytest.raises(ConfigError, match=told):
        federate(data(), net)


def turns(net, x):
    if net.training:
        net.u = nn.functional.normalize(x.mean(0), dim=0)
    return net.layer(x)


def moves(net, x):
    if net.training:
        net.u = 0.9 * net.u + 0.1 * x.mean(0)
    return net.layer(x)


def test_buffers_that_may_be_no_averages_are_refused_or_warned_of(caplog):
    unit = partial(Net, turns, u=nn.Buffer(torch.tensor([1.0, 0, 0, 0])))
    with pytest.raises(ConfigError, match=r"'u' of Net is a unit vector, .* buffers=keep"):
        federate(data(), unit())
    federate(data(), unit(), aggregator=FedAvg(buffers="keep"))
    with caplog.at_level(logging.WARNING):
        federate(data(), normalised())
        assert not caplog.records
        federate(data(), Net(moves, u=nn.Buffer(torch.zeros(4))))
    assert "mean of the clients' 'u' of Net, which may be no running mean" in caplog.text
