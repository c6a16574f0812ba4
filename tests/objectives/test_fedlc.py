"""Against the formula, written out; and what it leaves alone."""

import lightning as L
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedfacet.losses import margin
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.counting import FedLCObjective
from fedfacet.types import Batch

LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 3])  # of five classes: none of 1, and none of the last


def samples(y=LABELS):
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(len(y), 3, generator=draw), y, torch.zeros_like(y))


def objective(kind=FedLCObjective, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(torch.nn.Linear(3, 5), **settings)


def halves(batch):
    return [Batch(*(column[:5] for column in batch)), Batch(*(column[5:] for column in batch))]


def calibrated(logits, y, tau):
    """The mean of the formula over the samples, with Python's own sums over the classes that are there."""
    counts = {0: 9, 2: 2, 3: 1}
    lowered = {c: logits[:, c] - tau * n**-0.25 for c, n in counts.items()}
    partition = sum(values.exp() for values in lowered.values())
    terms = [(lowered[label][i].exp() / partition[i]).log() for i, label in enumerate(y.tolist())]
    return -sum(terms) / len(terms)


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_loss_and_gradient_are_those_of_the_formula(tau):
    batch, own = samples(), objective(tau=tau)
    own.before_steps(halves(batch), 3)
    loss = own.training_step(batch, 0)
    loss.backward()
    weight = own.model.weight.detach().clone().requires_grad_()
    expected = calibrated(functional.linear(batch.x, weight, own.model.bias.detach()), batch.y, tau)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(own.model.weight.grad, weight.grad, rtol=1e-5, atol=1e-7)
    assert not own.model.weight.grad[[1, 4]].any(), "nothing is learnt about classes that are absent"
    assert own.model.weight.grad.isfinite().all()


def test_it_is_the_pairwise_margin():
    """A rare class has to be ahead of a common one by tau (n_rare^-1/4 - n_common^-1/4) for the loss to be log 2."""
    own = objective(tau=2.0)
    own.before_steps([samples(torch.tensor([0] * 16 + [1]))], 1)
    ahead = 2.0 * (1 - 16**-0.25)
    logits = torch.tensor([[0.0, ahead]])
    loss = own.training_loss(logits, Batch(torch.empty(1), torch.tensor([1]), torch.tensor([0])))
    assert loss.item() == pytest.approx(torch.tensor(2.0).log().item(), rel=1e-6)


def test_even_classes_and_a_tau_of_zero_change_nothing():
    even, plain = samples(torch.arange(10) % 5), objective(ClassificationObjective)
    own = objective(tau=1.0)
    own.before_steps([even], 1)
    torch.testing.assert_close(own.training_step(even, 0), plain.training_step(even, 0))
    batch, own = samples(), objective(tau=0.0)
    own.before_steps([batch], 1)
    assert torch.equal(own.training_step(batch, 0), plain.training_step(batch, 0)), "bit for bit"


def test_the_next_client_has_counts_of_its_own():
    batch, own = samples(), objective()
    own.before_steps([samples(torch.tensor([4, 4, 1]))], 1)
    own.before_steps([batch], 1)
    fresh = objective()
    fresh.before_steps([batch], 1)
    assert torch.equal(own.training_step(batch, 0), fresh.training_step(batch, 0))


def test_whoever_measures_gets_plain_logits_and_the_plain_loss():
    batch, own = samples(), objective()
    own.before_steps([batch], 1)
    logits = own(batch.x)
    assert torch.equal(logits, own.model(batch.x))
    assert torch.equal(own.loss(logits, batch), functional.cross_entropy(logits, batch.y))


def test_it_counts_under_a_plain_trainer(tmp_path):
    batch, own = samples(), objective(tau=1.0)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*batch), batch_size=4)
    trainer.fit(own, loader, loader)
    expected = objective(tau=1.0)
    expected.before_steps([batch], 1)
    logits = own(batch.x)
    assert torch.equal(own.training_loss(logits, batch), expected.training_loss(logits, batch))


def test_bad_settings_are_refused():
    for tau in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"^Expected `objective\.tau` to be 0 or larger, and finite, but got"):
            objective(tau=tau)
    with pytest.raises(ValueError, match=r"^Expected `loss=cross_entropy` with objective=fedlc"):
        objective(loss=margin)
