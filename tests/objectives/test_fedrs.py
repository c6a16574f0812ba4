"""Against the formula, written out; and what it leaves alone."""

import pytest
import torch
from torch.nn import functional

from fedfacet.losses import margin
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.counting import FedRSObjective
from fedfacet.types import Batch

LABELS = torch.tensor([0, 0, 0, 2, 2, 3])  # of five classes: none of 1, and none of the last
ABSENT = [1, 4]


def samples(y=LABELS):
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(len(y), 3, generator=draw), y, torch.zeros_like(y))


def objective(kind=FedRSObjective, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(torch.nn.Linear(3, 5), **settings)


def started(batch, **settings):
    own = objective(**settings)
    own.before_steps([Batch(*(column[:2] for column in batch)), Batch(*(column[2:] for column in batch))], 3)
    return own


def restricted(logits, y, alpha):
    """The mean of the formula over the samples, class by class."""
    partition = sum((logits[:, c] * (alpha if c in ABSENT else 1)).exp() for c in range(5))
    return -sum((logits[i, label].exp() / partition[i]).log() for i, label in enumerate(y.tolist())) / len(y)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_loss_and_gradient_are_those_of_the_formula(alpha):
    batch = samples()
    own = started(batch, alpha=alpha)
    loss = own.training_step(batch, 0)
    loss.backward()
    weight = own.model.weight.detach().clone().requires_grad_()
    expected = restricted(functional.linear(batch.x, weight, own.model.bias.detach()), batch.y, alpha)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(own.model.weight.grad, weight.grad, rtol=1e-5, atol=1e-7)
    assert bool(own.model.weight.grad[ABSENT].any()) == (alpha > 0)


def test_the_push_on_absent_classes_is_alpha_times_their_restricted_probability():
    batch = samples()
    own = started(batch, alpha=0.25)
    logits = own(batch.x).detach().requires_grad_()
    own.training_loss(logits, batch).backward()
    scaled = logits.detach() * torch.tensor([1, 0.25, 1, 1, 0.25])
    expected = 0.25 * scaled.softmax(dim=1)[:, ABSENT] / len(batch.y)
    torch.testing.assert_close(logits.grad[:, ABSENT], expected)


def test_who_holds_every_class_trains_as_ever_and_so_does_an_alpha_of_one():
    plain = objective(ClassificationObjective)
    for batch, alpha in ((samples(torch.arange(10) % 5), 0.1), (samples(), 1.0)):
        assert torch.equal(started(batch, alpha=alpha).training_step(batch, 0), plain.training_step(batch, 0)), "bit for bit"


def test_the_next_client_has_classes_of_its_own():
    batch = samples()
    own = started(samples(torch.tensor([4, 4, 1])))
    own.before_steps([batch], 1)
    assert torch.equal(own.training_step(batch, 0), started(batch).training_step(batch, 0))


def test_whoever_measures_gets_plain_logits_and_the_plain_loss():
    batch = samples()
    own = started(batch, alpha=0.0)
    logits = own(batch.x)
    assert torch.equal(logits, own.model(batch.x))
    assert torch.equal(own.loss(logits, batch), functional.cross_entropy(logits, batch.y))


def test_bad_settings_are_refused():
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"^Expected `objective\.alpha` in \[0, 1\], but got"):
            objective(alpha=alpha)
    with pytest.raises(ValueError, match=r"^Expected `loss=cross_entropy` with objective=fedrs"):
        objective(loss=margin)
