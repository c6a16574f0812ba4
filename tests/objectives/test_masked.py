"""Masked cross entropy by hand: a client that holds classes 0 and 2 of four."""

import math

import pytest
import torch
from torch.nn import functional

from fedfacet.build import build, settle
from fedfacet.config import compose_job
from fedfacet.losses import margin
from fedfacet.objectives.counting import FedRSObjective, MaskedObjective
from fedfacet.types import Batch

Y = torch.tensor([0, 2, 2])
LOGITS = torch.tensor([[1.0, 5.0, 2.0, -3.0], [0.5, 7.0, 1.5, 9.0], [0.0, -2.0, 3.0, 4.0]])


def started(kind=MaskedObjective, **settings):
    own = kind(torch.nn.Linear(3, 4), **settings)
    own.before_steps([Batch(torch.randn(3, 3), Y, Y * 0)], 1)
    return own


@pytest.mark.parametrize(("masked", "others"), [("zero", 2.0), ("out", 0.0)])
def test_loss_and_gradient_by_hand(masked, others):
    """Logits of classes 1 and 3 count as 0, so that the sum has 2 e^0 for them, or they are out of it."""
    logits = LOGITS.clone().requires_grad_()
    loss = started(masked=masked).training_loss(logits, Batch(torch.empty(3), Y, Y))
    loss.backward()
    sums = [math.exp(row[0]) + math.exp(row[2]) + others for row in LOGITS.tolist()]
    expected = [math.log(total) - row[label] for total, row, label in zip(sums, LOGITS.tolist(), Y.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(expected) / 3, rel=1e-6)
    assert not logits.grad[:, [1, 3]].any()
    probability = math.exp(1.0) / sums[0]
    assert logits.grad[0, 0].item() == pytest.approx((probability - 1) / 3, rel=1e-5)


def test_zero_is_fedrs_with_alpha_zero_and_all_classes_are_the_plain_loss():
    batch = Batch(torch.empty(3), Y, Y)
    assert started().training_loss(LOGITS, batch) == started(FedRSObjective, alpha=0.0).training_loss(LOGITS, batch)
    own = MaskedObjective(torch.nn.Linear(3, 4), masked="out")
    own.before_steps([Batch(torch.empty(4), torch.arange(4), torch.arange(4))], 1)
    assert torch.equal(own.training_loss(LOGITS, batch), functional.cross_entropy(LOGITS, Y))


def test_whoever_measures_gets_the_plain_loss():
    own = started()
    assert torch.equal(own.loss(LOGITS, Batch(torch.empty(3), Y, Y)), functional.cross_entropy(LOGITS, Y))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"^Expected `objective\.masked` to be"):
        started(masked="half")
    with pytest.raises(ValueError, match=r"^Expected `loss=cross_entropy` with objective=masked"):
        started(loss=margin)


def test_clients_side_by_side_are_masked_as_one_by_one(tmp_path):
    """Clients of other classes stand in stacks of their own, or as rows with masks of their own."""
    models = []
    for engine in ("sequential", "vectorized"):
        options = (
            "experiment=digits_gsc", "partition=classes_per_client", "selector=uniform", "aggregator=fedavg", "callbacks=[]",
            "logger=[]", "objective=masked", "model=mlp", "model.hidden=[4]", "federation.rounds=1", "federation.cohort_size=4",
            "local.amount=1", "threads=1", f"engine={engine}", "engine.device=cpu",
        )  # fmt: skip
        config, _ = compose_job("train", list(options))
        settle(config)
        federation = build(config, tmp_path / engine)
        federation.run_round()
        models.append(federation.state.model)
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=0, atol=1e-5)
