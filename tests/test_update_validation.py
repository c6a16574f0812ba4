"""What a client sends is looked at once, before it enters a round: whatever is forged is named, and refused or left out."""

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import state
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.corrections import Correction
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import BadUpdateError
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.participation import Participation
from fedfacet.selectors.all import AllSelector

WEIGHT, MEAN, SENT, KEPT = "body.weight", "norm.running_mean", "control", "own"


def network(num_classes, input_shape):
    """A model with buffers of both kinds."""
    layers = {"flat": nn.Flatten(), "body": nn.Linear(16, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, num_classes)}
    return nn.Sequential(OrderedDict(layers))


class Sends(Correction):
    """Sends something along, and keeps something."""

    def on_client_end(self, end):
        return {SENT: torch.ones(3)}, {KEPT: torch.ones(2)}


class Reads(FedAvgM):
    """Reads what is sent along."""

    def extras(self, facts):
        return {SENT: torch.zeros(3)}


class Forging(SequentialEngine):
    """Puts something else in the place of one client's update."""

    def __init__(self, forged, client_id):
        super().__init__(device="cpu")
        self.forged, self.client_id = forged, client_id

    def run(self, tasks):
        for task, update in zip(tasks, super().run(tasks), strict=True):
            yield self.forged(update) if task.client_id == self.client_id else update


class Lost(Participation):
    """One client's update never arrives."""

    def __init__(self, client_id):
        self.client_id = client_id

    def outcome(self, client_id, draw):
        return float(client_id != self.client_id)


@pytest.fixture(scope="module")
def federation(tiny_federation):
    """Return a function that makes a federation of four clients, all of whom take part."""
    return lambda **settings: tiny_federation(
        selector=AllSelector(), aggregator=Reads(), correction=Sends(), model=network, cohort_size=4, **settings
    )


def with_tensor(bundle, name, change):
    """Forge one tensor of an update's ``bundle``."""
    return lambda update: replace(update, **{bundle: getattr(update, bundle) | {name: change(getattr(update, bundle)[name])}})


def with_value(name, value):
    return lambda update: replace(update, **{name: value})


def with_metric(name, value):
    return lambda update: replace(update, metrics={**update.metrics, name: value})


def without(bundle, name):
    return lambda update: replace(update, **{bundle: {n: t for n, t in getattr(update, bundle).items() if n != name}})


def quantized(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


NO_TENSORS = {
    "complex": lambda tensor: tensor.to(torch.complex64),
    "sparse": lambda tensor: tensor.to_sparse(),
    "quantized": quantized,
    "nested": lambda tensor: torch.nested.nested_tensor([tensor]),
    "without memory": lambda tensor: tensor.to("meta"),
    "of a graph": lambda tensor: tensor.clone().requires_grad_(),
    "negated lazily": torch._neg_view,
    "None": lambda tensor: None,
    "an array": lambda tensor: tensor.numpy(),
    "a list": lambda tensor: tensor.tolist(),
}
OTHER_DTYPES = {
    "float64": lambda tensor: tensor.double(),
    "float16": lambda tensor: tensor.half(),
    "int": lambda tensor: tensor.int(),
    "bool": lambda tensor: tensor.bool(),
}
OTHER_SHAPES = {
    "flat": lambda tensor: torch.zeros(tensor.numel() + 1),
    "one more axis": lambda tensor: tensor[None],
    "broadcastable": lambda tensor: tensor.reshape(-1)[:1],
    "scalar": lambda tensor: torch.tensor(0.0),
}
NOT_FINITE = {"NaN": lambda tensor: tensor * math.nan, "infinite": lambda tensor: tensor.abs() + math.inf}
NO_MAPPINGS = {"None": None, "a list": [], "a tensor": torch.zeros(3), "without names": {1: torch.zeros(3)}}
NO_NUMBERS = {
    "NaN": math.nan, "infinite": math.inf, "minus infinite": -math.inf, "a string": "5", "a bool": True, "None": None,
    "a tensor": torch.tensor(5), "an array": np.array(5), "complex": 5 + 0j, "beyond floats": 10**400,
}  # fmt: skip
NO_COUNTS = NO_NUMBERS | {"0": 0, "negative": -1, "a fraction of one": 0.5, "too large": 2**53 + 1}

FORGED = {
    **{f"is {name}": (lambda update, value=value: value, f"it is {type(value).__name__} instead of an update")
       for name, value in {"None": None, "a dict": {}, "a string": "update", "a tensor": torch.zeros(3)}.items()},
    **{f"of client {value!r}": (with_value("client_id", value), f"it names client {'True' if value is True else ''}")
       for value in (0, 2, 9, -1, None, "1", True, 1.0, math.nan, torch.tensor(1), torch.tensor([1, 1]))},
    **{f"num_samples {name}": (with_value("num_samples", value), "its num_samples is ")
       for name, value in (NO_COUNTS | {"not whole": 16.0}).items()},
    **{f"num_steps {name}": (with_value("num_steps", value), "its num_steps is ")
       for name, value in (NO_COUNTS | {"not whole": 2.0}).items()},
    **{f"step_weight {name}": (with_value("step_weight", value), "its step_weight is ")
       for name, value in (NO_NUMBERS | {"0": 0.0, "negative": -1.0}).items()},
    **{f"loss_sum {name}": (with_metric("loss_sum", value), "its loss_sum is ") for name, value in NO_NUMBERS.items()},
    **{f"num_seen {name}": (with_metric("num_seen", value), "its num_seen is ") for name, value in NO_COUNTS.items()},
    "no loss_sum": (with_value("metrics", {"num_seen": 16}), "its loss_sum is None"),
    "no num_seen": (with_value("metrics", {"loss_sum": 1.0}), "its num_seen is None"),
    "no metrics": (with_value("metrics", None), "its loss_sum is None"),
    **{f"{bundle} {kind}": (with_tensor(bundle, name, change), f"'{name}' in its {bundle} is no dense tensor of real numbers")
       for bundle, name in (("delta", WEIGHT), ("buffers", MEAN), ("extras", SENT), ("memory", KEPT))
       for kind, change in NO_TENSORS.items()},
    **{f"{bundle} {kind}": (with_tensor(bundle, name, change), f"'{name}' in its {bundle} is torch.{kind}")
       for bundle, name in (("delta", WEIGHT), ("buffers", MEAN), ("extras", SENT)) for kind, change in OTHER_DTYPES.items()},
    **{f"{bundle} {kind}": (with_tensor(bundle, name, change), f"'{name}' in its {bundle} has shape")
       for bundle, name in (("delta", WEIGHT), ("buffers", MEAN), ("extras", SENT)) for kind, change in OTHER_SHAPES.items()},
    **{f"{bundle} {kind}": (with_tensor(bundle, name, change), "it holds NaN or infinite numbers")
       for bundle, name in (("delta", WEIGHT), ("buffers", MEAN), ("extras", SENT), ("memory", KEPT))
       for kind, change in NOT_FINITE.items()},
    **{f"{bundle} without {name}": (without(bundle, name), f"its {bundle} lacks '{name}'")
       for bundle, name in (("delta", WEIGHT), ("buffers", MEAN), ("extras", SENT))},
    **{f"{bundle} with more": (lambda update, b=bundle: replace(update, **{b: getattr(update, b) | {"more": torch.zeros(1)}}),
                               f"its {bundle} holds 'more', which it must not") for bundle in ("delta", "buffers")},
    "buffers with a counter": (with_value("buffers", {MEAN: torch.zeros(4), "norm.running_var": torch.zeros(4),
                                                      "norm.num_batches_tracked": torch.tensor(2)}), "which it must not"),
    **{f"{bundle} {kind}": (with_value(bundle, value), f"its {bundle} is {type(value).__name__} instead of tensors by name")
       for bundle in ("delta", "buffers", "extras", "memory") for kind, value in NO_MAPPINGS.items()},
}  # fmt: skip
"""What is forged -> how, and what is said about it."""


@pytest.fixture(scope="module")
def short(federation):
    """A round without client 1: the federation after it, and its result."""
    run = federation(participation=Lost(1))
    return run, run.run_round()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor|.*nested tensors:UserWarning")
@pytest.mark.parametrize("fault", FORGED)
def test_a_forged_update_is_refused_by_client_and_round_or_left_out(fault, federation, short, caplog):
    forged, said = FORGED[fault]
    run, (short, expected) = federation(engine=Forging(forged, 1)), short
    before = run.state
    named = r"^Expected .* from client 1 in round 1, but .*federation\.on_bad_update=drop"
    with pytest.raises(BadUpdateError, match=named) as info:
        run.run_round()
    assert said in str(info.value)
    assert "\n" not in str(info.value)
    assert run.state is before

    run.put(UpdateCheck("drop"))
    result = run.run_round()
    assert result.arrived == expected.arrived == (0, 2, 3)
    assert result.cohort == (0, 1, 2, 3)
    assert state.digest(run.state.model) == state.digest(short.state.model)
    assert state.digest(run.state.aggregator["velocity"]) == state.digest(short.state.aggregator["velocity"])
    assert run.state.memory.keys() == {0, 2, 3}
    assert run.state.participation_counts.tolist() == [1, 0, 1, 1]
    assert result.metrics["train/loss"] == expected.metrics["train/loss"]
    assert "client 1 in round 1" in caplog.text


@pytest.mark.parametrize("client_id", [0, 3])
@pytest.mark.parametrize("fault", ["is None", "delta None", "num_samples NaN", "extras without control", "delta NaN"])
def test_the_first_update_and_the_last_may_be_the_forged_one(fault, client_id, federation):
    lossy = federation(engine=Forging(FORGED[fault][0], client_id), on_bad_update="drop")
    short = federation(participation=Lost(client_id))
    assert lossy.run_round().arrived == short.run_round().arrived
    assert state.digest(lossy.state.model) == state.digest(short.state.model)


HARMLESS = {
    "extras that nobody reads": lambda update: replace(update, extras=update.extras | {"more": torch.zeros(2, 2)}),
    "no memory": with_value("memory", {}),
    "no samples seen": with_value("metrics", {"loss_sum": 0.0, "num_seen": 0}),
    "a loss of 0": with_metric("loss_sum", 0),
    "a negative loss": with_metric("loss_sum", -3.5),
    "names in another order": lambda update: replace(update, delta=dict(reversed(update.delta.items()))),
    "memory laid out otherwise": with_tensor("delta", WEIGHT, lambda tensor: tensor.T.contiguous().T),
    "memory that is another's": with_tensor("delta", WEIGHT, lambda tensor: tensor.flip(0).flip(0)[:]),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_fault_enters(name, federation):
    ours, plain = federation(engine=Forging(HARMLESS[name], 1)), federation()
    assert ours.run_round().arrived == plain.run_round().arrived == (0, 1, 2, 3)
    assert state.digest(ours.state.model) == state.digest(plain.state.model)


def test_factors_beyond_the_range_of_floats_are_refused_in_a_sentence(tiny_federation):
    """torch refuses them by a traceback where infinity would do."""
    with pytest.raises(BadUpdateError, match="Expected a finite model after round 1, but FedAvgM made NaN or infinity"):
        tiny_federation(aggregator=FedAvgM(server_lr=1e300)).run_round()
