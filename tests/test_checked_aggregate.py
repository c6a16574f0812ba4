"""An aggregator of the user's own is held to its contract: what breaks it in silence elsewhere is one sentence here."""

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.checked_aggregate import checked_aggregate
from fedfacet.errors import AggregationError


class Own(Aggregator):
    """FedAvg as a user may write it; ``step`` is what it does."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def aggregate(self, server, model, updates):
        return self.step(server, model, updates)


def mean(model, deltas):
    return {name: tensor + torch.stack([delta[name] for delta in deltas]).mean(dim=0) for name, tensor in model.items()}


def one_pass(server, model, updates):
    return server, mean(model, [update.delta for update in updates])


def as_a_list(server, model, updates):
    updates = list(updates)
    assert len(updates) == sum(1 for _ in updates)
    return server, mean(model, [update.delta for update in updates])


def one_after_another(server, model, updates):
    updates = iter(updates)
    first = next(updates)
    return server, mean(model, [first.delta, *(update.delta for update in updates)])


def in_the_models_place(server, model, updates):
    """Names get other tensors as updates arrive, and no tensor is written to."""
    for update in updates:
        for name, change in update.delta.items():
            model[name] = model[name] + change / 3
    return server, model


def counted_first(server, model, updates):
    number = sum(1 for _ in updates)
    total = model
    for update in updates:
        total = state.add(total, update.delta, scale=1 / number)
    return server, total


def in_place(server, model, updates):
    for update in updates:
        model["weight"] += update.delta["weight"]
    return server, model


def without_bias(server, model, updates):
    _, new = one_pass(server, model, updates)
    return server, {"weight": new["weight"]}


def alone(server, model, updates):
    return one_pass(server, model, updates)[1]


def federation(aggregator):
    rng = np.random.default_rng(0)
    data = deal(dataset_from_arrays(rng.normal(size=(60, 4)), np.arange(60) % 2), IIDPartitioner(num_clients=3))
    torch.manual_seed(0)
    return federate(data, nn.Linear(4, 2), aggregator=aggregator, callbacks={})


@pytest.mark.parametrize("step", [one_pass, as_a_list, one_after_another, in_the_models_place])
def test_what_keeps_to_the_contract_is_fedavg(step):
    ours, theirs = federation(FedAvg()), federation(Own(step))
    before, kept = theirs.state.model, dict(theirs.state.model)
    ours.run_round()
    theirs.run_round()
    assert all(before[name] is tensor for name, tensor in kept.items()), "the state before the round is as it was"
    for name, tensor in ours.state.model.items():
        torch.testing.assert_close(theirs.state.model[name], tensor)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (counted_first, r"Expected Own.aggregate to read the updates once, as they arrive, but it reads them again"),
        (in_place, r"Expected Own.aggregate to leave the model as it is, .*, but it has written to 'weight'"),
        (without_bias, r"Expected Own.aggregate to return two things, .* 2 tensors, but got a model that differs in 'bias'"),
        (alone, r"Expected Own.aggregate to return two things, .*, but got dict"),
    ],
)
def test_what_breaks_it_is_told(step, message):
    with pytest.raises(AggregationError, match=message):
        federation(Own(step)).run_round()


def test_ours_are_not_watched():
    aggregator = FedAvg()
    assert checked_aggregate(aggregator) == aggregator.aggregate
