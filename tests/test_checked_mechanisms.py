"""A mechanism of the user's own that does not keep to its contract ends the run with a sentence; ours are not watched."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import IIDPartitioner, Mechanism, dataset_from_arrays, deal, federate
from fedfacet.errors import AggregationError, BadUpdateError


def run(mechanism):
    """Run two rounds with a mechanism."""
    draw = np.random.default_rng(0)
    data = deal(dataset_from_arrays(draw.normal(size=(60, 4)), np.arange(60) % 2), IIDPartitioner(num_clients=3))
    federation = federate(data, nn.Linear(4, 2), mechanisms=[mechanism], rounds=2, callbacks={})
    federation.fit()
    return federation


class Incoming(Mechanism):
    rank = 70

    def __init__(self, change):
        self.change = change

    def incoming(self, round, task, update):
        return self.change(update)


def changed(update, change):
    return replace(update, delta={name: change(tensor) for name, tensor in update.delta.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda update: update.delta,
            "Expected Incoming.incoming to return an update, or None .* but got dict: return `dataclasses",
        ),
        (partial(changed, change=torch.Tensor.double), r"'weight' is torch.float64 of shape \(2, 4\) instead of torch.float32"),
        (partial(changed, change=lambda tensor: tensor / 0), "'weight' holds NaN or infinity: convert it"),
        (lambda update: replace(update, delta={}), "'bias' is missing"),
    ],
)
def test_what_it_returns_is_an_update_of_the_same_tensors(change, message):
    with pytest.raises(BadUpdateError, match=message):
        run(Incoming(change))


class Merge(Mechanism):
    def __init__(self, make):
        self.make = make

    def merge(self, round, inner):
        return self.make(inner)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda inner: None, "Expected Merge.merge to return a function of state, model and updates, but got NoneType"),
        (
            lambda inner: lambda server, model, updates: inner(server, model, updates)[1],
            "Expected Merge.merge to return two things",
        ),
        (
            lambda inner: lambda *given: (inner(*given)[0], {name: value.double() for name, value in inner(*given)[1].items()}),
            "return two things|convert it, as in",
        ),
    ],
)
def test_what_merges_returns_a_state_and_a_model(make, message):
    with pytest.raises(AggregationError, match=message):
        run(Merge(make))


class After(Mechanism):
    slot = "after"

    def after(self, round, new):
        return [round.number]


class Misspelt(Mechanism):
    def incomming(self, round, task, update):
        return None


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (After(), "Expected After.after to return its next state, a dict, or None, but got list"),
        (Misspelt(), "no round calls its `incomming`: call it `incoming`"),
    ],
)
def test_states_and_names_are_looked_at(mechanism, message):
    with pytest.raises(ValueError, match=message):
        run(mechanism)


def test_one_that_keeps_to_it_changes_nothing_but_what_it_changes():
    halved = run(Incoming(partial(changed, change=lambda tensor: tensor / 2)))
    assert halved.state.round == 2
    assert not any(isinstance(hook, partial) for hook in federate_plain().chain.incoming)


def federate_plain():
    data = deal(dataset_from_arrays(np.eye(8), np.arange(8) % 2), IIDPartitioner(num_clients=2))
    return federate(data, nn.Linear(8, 2), callbacks={})
