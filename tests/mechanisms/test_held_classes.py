"""Rows of the head are averaged over those who hold their class: by hand, from the updates themselves."""

from functools import partial

import numpy as np
import pytest
import torch

from fedfacet import federate
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.aggregators.fedld import FedLD
from fedfacet.clients.queries.counts import HeldClasses as HeldClassesQuery
from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.federated import deal
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.held_classes import HeldClasses
from fedfacet.models.mlp import MLP
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition

HELD = {0: [1, 1, 0, 0], 1: [1, 0, 1, 0], 2: [1, 0, 0, 0]}
"""Of four classes; nobody holds the last one."""


class ByClass(Partitioner):
    """Three clients with the classes of ``HELD``."""

    def partition(self, y, a):
        owned = [np.flatnonzero(y == 0)[client::3] for client in range(3)]
        others = [np.flatnonzero(y == 1), np.flatnonzero(y == 2), np.empty(0, np.int64)]
        return Partition(tuple(np.sort(np.concatenate(both)) for both in zip(owned, others, strict=True)))


@pytest.fixture(scope="module")
def data():
    y = np.arange(48) % 4
    x = np.random.default_rng(0).normal(size=(48, 5)).astype(np.float32)
    return deal(dataset_from_arrays(x, y), ByClass())


def run_of(data, **settings):
    torch.manual_seed(0)
    settings = {"mechanisms": [HeldClasses(held_classes=HeldClassesQuery())], "callbacks": {}, "rounds": 2} | settings
    optimizer = partial(torch.optim.SGD, lr=0.5, weight_decay=0.1)  # by which rows of absent classes move too
    return federate(data, settings.pop("model", None) or MLP(4, (5,), hidden=[3]), optimizer=optimizer, **settings)


def test_a_row_is_the_mean_of_those_who_hold_its_class(data):
    run = run_of(data)
    before = run.state.model
    updates = list(run.engine.run([run.order(run.state, client) for client in range(3)]))
    result = run.run_round()
    for name, tensor in run.state.model.items():
        moved = torch.stack([update.delta[name] for update in updates])
        if name.startswith("head."):
            held = torch.tensor(list(HELD.values())).float().view(3, 4, *[1] * (tensor.dim() - 1))
            expected = before[name] + (moved * held).sum(dim=0) / held.sum(dim=0).clamp(min=1)
        else:
            expected = before[name] + moved.mean(dim=0)
        torch.testing.assert_close(tensor, expected)
    assert torch.equal(run.state.model["head.weight"][3], before["head.weight"][3]), "nobody holds the last class"
    assert run.state.disclosures["held_classes"] == HELD
    assert result.ledger.query_floats_up == 12
    assert run.run_round().ledger.query_floats_up == 0, "they say it once"


def test_a_row_that_nobody_holds_keeps_its_momentum(data):
    run = run_of(data, aggregator=FedAvgM(momentum=0.9, server_lr=1.0))
    before = run.state.model["head.weight"]
    moved = run.fit().model["head.weight"] != before
    assert moved[:3].all()
    assert not moved[3].any()
    assert not run.state.aggregator["velocity"]["head.weight"][3].any()


def test_it_is_refused_where_it_cannot_work(data):
    with pytest.raises(ConfigError, match="needs whole models: choose fedavg, fedavgm or fednova"):
        run_of(data, aggregator=FedLD())
    run = run_of(data, mechanisms=[HeldClasses(held_classes=HeldClassesQuery(), head="classifier")])
    with pytest.raises(ConfigError, match="The model has no layer `classifier` of one row per class: name"):
        run.run_round()
