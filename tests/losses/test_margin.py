import math

import pytest
import torch

from fedfacet.losses import margin
from fedfacet.objectives.classification import cross_entropy
from fedfacet.types import Batch

PENALTIES = ("logits_per_sample", "softmax_batch")


def batch_of(y):
    return Batch(torch.empty(len(y)), torch.tensor(y), torch.zeros(len(y), dtype=torch.int64))


@pytest.fixture
def logits():
    return 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def batch():
    return batch_of([0, 1, 2, 3, 1, 2])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_without_weight_it_is_the_cross_entropy(logits, batch, penalty):
    assert torch.equal(margin(logits, batch, margin_weight=0.0, penalty=penalty), cross_entropy(logits, batch))


def test_every_sample_is_penalised_by_its_own_logits(logits, batch):
    """Equation 3, written out in Python's own arithmetic."""
    penalties = [math.log(1 + sum(value**2 for value in row)) for row in logits.tolist()]
    expected = cross_entropy(logits, batch).item() + 0.3 * sum(penalties) / len(penalties)
    assert margin(logits, batch, margin_weight=0.3).item() == pytest.approx(expected, rel=1e-12)


def test_the_released_code_penalises_all_softmax_outputs_of_a_batch_at_once(logits, batch):
    squares = sum(value**2 for row in logits.softmax(dim=1).tolist() for value in row)
    expected = cross_entropy(logits, batch).item() + 0.3 * math.log(1 + squares)
    assert margin(logits, batch, margin_weight=0.3, penalty="softmax_batch").item() == pytest.approx(expected, rel=1e-12)


def test_only_the_papers_penalty_is_a_mean_over_samples(logits, batch):
    """Twice the batch costs the same by the paper, and more by the released code."""
    twice, both = torch.cat([logits, logits]), Batch(*(torch.cat([part, part]) for part in batch))
    once, doubled = ({p: margin(z, b, margin_weight=1.0, penalty=p).item() for p in PENALTIES} for z, b in
                     ((logits, batch), (twice, both)))  # fmt: skip
    assert doubled["logits_per_sample"] == pytest.approx(once["logits_per_sample"], rel=1e-12)
    assert doubled["softmax_batch"] > once["softmax_batch"] + 0.5


def test_the_logits_penalty_feels_a_shift_that_softmax_does_not(logits, batch):
    shifted = logits + 5
    assert margin(shifted, batch, penalty="softmax_batch").item() == pytest.approx(
        margin(logits, batch, penalty="softmax_batch").item(), rel=1e-9
    )
    assert margin(shifted, batch, margin_weight=1.0) > margin(logits, batch, margin_weight=1.0) + 0.5


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0])
def test_the_gradient_is_that_of_finite_differences(logits, batch, penalty, scale):
    scaled = (scale * logits).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: margin(z, batch, margin_weight=0.5, penalty=penalty), scaled)


def test_it_holds_logits_back():
    """The cross entropy of a sample that is classified rightly wants larger logits without end; with the penalty it stops."""
    z = torch.tensor([[1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    for _ in range(3000):
        (gradient,) = torch.autograd.grad(margin(z, batch_of([0]), margin_weight=0.1), z)
        z = (z - 0.5 * gradient).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(margin(z, batch_of([0]), margin_weight=0.1), z)
    assert gradient.abs().max() < 1e-6
    assert 0.5 < z[0, 0] < 5


@pytest.mark.parametrize("penalty", PENALTIES)
def test_attributes_are_never_read(logits, batch, penalty):
    other = batch._replace(a=torch.full_like(batch.a, -7))
    assert torch.equal(margin(logits, batch, penalty=penalty), margin(logits, other, penalty=penalty))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin_weight": -0.1}, "Expected `margin_weight` to be 0 or larger, but got -0.1"),
        ({"margin_weight": float("nan")}, "Expected `margin_weight` to be 0 or larger"),
        ({"penalty": "logits"}, "Expected `penalty` to be 'logits_per_sample' or 'softmax_batch', but got 'logits'"),
    ],
)
def test_impossible_settings_are_refused(logits, batch, settings, message):
    with pytest.raises(ValueError, match=message):
        margin(logits, batch, **settings)
