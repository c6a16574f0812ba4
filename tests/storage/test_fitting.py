"""A saved state of another federation, or one that somebody has edited, is refused before a round is run on it."""

import copy
import re
from dataclasses import replace

import pytest
import torch

from fedfacet import rng
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.callbacks.summary import Summary
from fedfacet.errors import CheckpointError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.schedulers import PlateauScheduler
from fedfacet.selectors.fedpns import FedPNSSelector
from fedfacet.storage.fitting import misfit


@pytest.fixture
def federation(tiny_federation, tmp_path):
    """Return a function that makes a federation whose parts all have a state."""

    def make():
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        return tiny_federation(
            objective=ClassificationObjective(model),
            aggregator=FedAvgM(),
            selector=FedPNSSelector(),
            scheduler=PlateauScheduler(metric="train/loss"),
            callbacks={"summary": Summary(run_dir=tmp_path, facts={}, model_config={})},
        )

    return make


def edited(saved, path, value):
    """Return a state in which one entry is another; ``...`` for one that is gone."""
    part, *keys = path
    if part in saved.slots:
        keys, part = [part, *keys], "slots"
    changed = copy.deepcopy(getattr(saved, part))
    if not keys:
        return replace(saved, **{part: value})
    table = changed
    for key in keys[:-1]:
        table = table[key]
    if value is ...:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    return replace(saved, **{part: changed})


WEIGHT = "head.weight"
EDITS = [
    (["model", WEIGHT], ..., "model has "),
    (["model", WEIGHT], torch.zeros(1, 4), "model.head.weight is a tensor of torch.float32 and shape (1, 4) instead of "),
    (["model", WEIGHT], torch.zeros(2, 4, dtype=torch.float64), "model.head.weight is a tensor of torch.float64"),
    (["model", "more"], torch.zeros(1), "model has "),
    (["participation_counts"], torch.zeros(3, dtype=torch.int64), "participation_counts is a tensor of torch.int64 and shape"),
    (["memory"], {7: {}}, "memory names client 7"),
    (["disclosures"], {"loss": {-1: 0.0}}, "disclosures.loss names client -1"),
    (["selector"], [], "selector is of type list instead of a table"),
    (["selector", "flagged"], ..., "selector has probabilities, arrived instead of probabilities, arrived, flagged"),
    (["selector", "probabilities"], torch.zeros(4, dtype=torch.int64), "selector.probabilities is a tensor of torch.int64"),
    (["aggregator", "velocity", WEIGHT], torch.zeros(3), "aggregator.velocity.head.weight is a tensor"),
    (["aggregator", "velocity", WEIGHT], 0.5, "aggregator.velocity.head.weight is of type float instead of a tensor"),
    (["scheduler", "factor"], "1", "scheduler.factor is of type str"),
    (["scheduler", "factor"], True, "scheduler.factor is of type bool"),
]


@pytest.mark.parametrize(("path", "value", "told"), EDITS, ids=[f"{'.'.join(path)}-{told}" for path, _, told in EDITS])
def test_what_does_not_fit_is_named(federation, path, value, told):
    whole, other = federation(), federation()
    whole.run_round()
    before = other.state
    with pytest.raises(
        CheckpointError, match=f"Expected a checkpoint of this federation, but its {re.escape(told)}"
    ) as refusal:
        other.restore(edited(whole.state, path, value))
    assert "\n" not in str(refusal.value)
    assert other.state is before
    other.restore(whole.state)
    other.run_round()


def test_what_is_empty_at_first_may_have_grown():
    first = {"seen": {}, "order": [], "best": None, "vectors": torch.zeros((0, 0)), "steps": 0}
    grown = {"seen": {3: "x"}, "order": [1], "best": 0.5, "vectors": torch.zeros((2, 3)), "steps": 7}
    assert misfit("selector", grown, first, {}) is None
    assert misfit("selector", {"lots": torch.zeros(2, dtype=torch.float64)}, {"lots": torch.zeros(2)}, {}) is None
    assert misfit("selector", first | {"vectors": torch.zeros(2)}, first, {}).startswith("selector.vectors is a tensor")
    assert misfit("selector", first | {"steps": "7"}, first, {}) == "selector.steps is of type str"


@pytest.mark.parametrize("value", [torch.ones(2), {"val/acc": torch.ones(2)}, {"round": "x"}, 3])
def test_a_summary_of_something_else_than_numbers_is_named(federation, value):
    whole, other = federation(), federation()
    whole.run_round()
    with pytest.raises(CheckpointError, match=r"`callbacks\.summary\.best` holds measured numbers"):
        other.restore(edited(whole.state, ["callbacks", "summary", "best"], value))
    assert other.state.round == 0


@pytest.mark.parametrize("totals", [{"seconds": None}, {"seconds": "1"}, {"more": 1.0}])
def test_totals_of_something_else_than_numbers_are_named(federation, totals):
    whole, other = federation(), federation()
    whole.run_round()
    with pytest.raises(CheckpointError, match=r"`callbacks\.summary\.totals` holds sums"):
        other.restore(edited(whole.state, ["callbacks", "summary", "totals"], totals))
    assert other.state.round == 0
