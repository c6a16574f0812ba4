"""A mechanism of the user's own, that of docs/one_round.md, takes part in a round without an edit of the package."""

import importlib
import inspect
import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedfacet import Mechanism, mechanisms, methods, state
from fedfacet.build import build, settle
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.config import compose_job, plain
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.mechanism import Chain
from fedfacet.storage import checkpoint
from fedfacet.types import GROUP_WEIGHTS

JOB = (
    "experiment=digits_gsc", "selector=uniform", "aggregator=fedavg", "heterogeneity='true'", "callbacks=[]", "logger=[]",
    "model.width=2", "model.hidden=4", "federation.rounds=4", "federation.cohort_size=9", "local.amount=1", "threads=1",
)  # fmt: skip
COOLDOWN = ("+mechanisms.cooldown._target_=my_module.Cooldown",)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Return a function: options -> a federation, and its settings as plain data. The path has the module of the page."""
    page = (Path(__file__).parents[2] / "docs" / "one_round.md").read_text()
    (code,) = re.findall(r"```python\n(.*?class Cooldown.*?)```", page, re.DOTALL)
    (tmp_path / "my_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)

    def make(*options):
        config, _ = compose_job("train", [*JOB, *options])
        settle(config)
        return build(config, tmp_path / "run"), plain(config)

    return make


def test_it_takes_part_is_saved_and_resumes(federation, tmp_path):
    whole, settings = federation(*COOLDOWN)
    results = [whole.run_round() for _ in range(2)]
    checkpoint.save(tmp_path / "run" / "checkpoints" / "last.ckpt", whole.state, settings)
    results += [whole.run_round() for _ in range(2)]
    assert [result.metrics["cooldown/available"] for result in results] == [24, 15, 15, 15]
    assert not any(set(one.cohort) & set(two.cohort) for one, two in itertools.pairwise(results))
    resumed, _ = federation(*COOLDOWN)
    resumed.restore(checkpoint.load(tmp_path / "run" / "checkpoints" / "last.ckpt")[0])
    resumed.fit()
    assert state.digest(resumed.state.model) == state.digest(whole.state.model)
    assert resumed.state.slots == whole.state.slots
    with pytest.raises(CheckpointError, match="its state has 'cooldown', which nothing here keeps"):
        federation()[0].restore(whole.state)


def test_one_that_does_nothing_changes_nothing(federation):
    """All points at which the default stands are left out."""
    usual, idle = federation()[0], federation("+mechanisms.idle._target_=fedfacet.mechanism.Mechanism")[0]
    usual.fit(), idle.fit()
    assert all(torch.equal(tensor, idle.state.model[name]) for name, tensor in usual.state.model.items())


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("fedfacet.FedAvg", "`mechanisms.odd._target_` to name a class derived from fedfacet.mechanism.Mechanism, but got"),
        ("my_module.Nothing", "my_module has no `Nothing`: fix the name"),
    ],
)
def test_what_is_none_is_refused(federation, target, sentence):
    with pytest.raises(ConfigError, match=sentence):
        federation(f"+mechanisms.odd._target_={target}")


class Weights(Mechanism):
    """The server's half of a method whose other half is an objective."""

    slot, rank = "weights", 46
    provides = frozenset({GROUP_WEIGHTS})

    def outgoing(self, before, task):
        weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return replace(task, broadcast=replace(task.broadcast, extras={GROUP_WEIGHTS: weights}))


def test_it_may_be_a_half_of_a_method(federation, monkeypatch):
    monkeypatch.setitem(sys.modules, "halves", SimpleNamespace(Weights=Weights))
    half = ("+mechanisms.weights._target_=halves.Weights",)
    with pytest.raises(ConfigError, match=r"requires 'group_weights', which mechanisms=Weights provides, but there is none"):
        federation(*half)
    whole, plain = federation(*half, "objective=group_weighted")[0], federation()[0]
    floats = whole.run_round().ledger.floats_down - plain.run_round().ledger.floats_down
    assert floats == 9 * 4
    assert state.digest(whole.state.model) != state.digest(plain.state.model)


def test_two_of_one_slot_are_refused(federation):
    again = [option.replace("mechanisms.cooldown", "mechanisms.again") for option in COOLDOWN]
    with pytest.raises(ValueError, match="two have `cooldown`: leave one out"):
        federation(*COOLDOWN, *again)


class Nameless(Mechanism):
    """A mechanism whose author forgot the slot, so that no resume would know whose state it is."""

    def init(self):
        return {"seen": 0}


def test_a_state_without_a_slot_is_refused():
    with pytest.raises(ValueError, match="but Nameless has none: name its `slot`"):
        Chain([Nameless()])


def test_every_mechanism_of_the_package_has_a_rank_and_a_slot_of_its_own():
    """Or the order of a user's list would decide, in silence, which comes first."""
    for room in (mechanisms, methods):
        for file in Path(room.__file__).parent.glob("*.py"):
            importlib.import_module(f"{room.__name__}.{file.stem}")
    ours = [one for one in Mechanism.__subclasses__() if one.__module__.startswith(("fedfacet.mechanisms", "fedfacet.methods"))]
    ours.append(Callbacks)
    assert len(ours) > 15
    slots = [one.slot for one in ours if one.slot]
    assert len({one.rank for one in ours}) == len(ours)
    assert len(set(slots)) == len(slots)
    assert 0 not in {one.rank for one in ours}
    assert all(str(one.rank) in inspect.getsource(Mechanism) for one in ours), "its docstring lists them"
