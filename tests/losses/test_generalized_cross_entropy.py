import pytest
import torch

from fedfacet.losses import generalized_cross_entropy
from fedfacet.objectives.classification import cross_entropy
from fedfacet.types import Batch


def batch_of(y):
    return Batch(torch.empty(len(y)), torch.tensor(y), torch.zeros(len(y), dtype=torch.int64))


@pytest.fixture
def logits():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def batch():
    return batch_of([0, 1, 2, 0, 1, 2])


def test_cross_entropy_is_the_mean_of_minus_log_p(logits, batch):
    p = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    assert cross_entropy(logits, batch) == pytest.approx(-p[range(6), batch.y].log().mean().item(), rel=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.3, 0.7, 1.0])
def test_it_is_the_mean_of_one_minus_p_to_the_q_over_q(logits, batch, q):
    p = logits.softmax(dim=1)[range(6), batch.y]
    assert generalized_cross_entropy(logits, batch, q=q).item() == pytest.approx(((1 - p**q) / q).mean().item(), rel=1e-12)


def test_q_of_one_is_the_mean_absolute_error(logits, batch):
    p = logits.softmax(dim=1)[range(6), batch.y]
    assert generalized_cross_entropy(logits, batch, q=1.0).item() == pytest.approx((1 - p).mean().item(), rel=1e-12)


@pytest.mark.parametrize(("q", "tolerance"), [(1e-3, 1e-2), (1e-6, 1e-5), (1e-12, 1e-9)])
def test_q_towards_zero_is_the_cross_entropy(logits, batch, q, tolerance):
    """(1 - p^q)/q = -log p + O(q); computed naively, 1 - p^q would lose every digit at q = 1e-12."""
    assert generalized_cross_entropy(logits, batch, q=q).item() == pytest.approx(
        cross_entropy(logits, batch).item(), abs=tolerance
    )


@pytest.mark.parametrize("q", [0.05, 0.3, 1.0])
def test_the_gradient_is_that_of_finite_differences(logits, batch, q):
    assert torch.autograd.gradcheck(lambda z: generalized_cross_entropy(z, batch, q=q), logits.requires_grad_())


@pytest.mark.parametrize("q", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("scale", [1e2, 1e4, 1e30])
def test_value_and_gradient_are_finite_and_exact_for_hopeless_samples(q, scale):
    """p_y -> 0 costs 1/q and pulls at nothing: the gradient is p_y^q times that of the cross entropy."""
    logits = torch.tensor([[-scale, scale], [scale, -scale]], requires_grad=True)
    loss = generalized_cross_entropy(logits, batch_of([0, 0]), q=q)
    loss.backward()
    assert loss.item() == pytest.approx((1 / q if q * scale > 20 else (1 - torch.tensor(-2 * scale * q).exp().item()) / q) / 2)
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() < 1e-4


def test_the_gradient_is_the_cross_entropys_times_p_to_the_q():
    logits = torch.tensor([[-3.0, 5.0, 0.5]], dtype=torch.float64, requires_grad=True)
    batch = batch_of([0])
    (ours,) = torch.autograd.grad(generalized_cross_entropy(logits, batch, q=0.3), logits)
    (plain,) = torch.autograd.grad(cross_entropy(logits, batch), logits)
    assert ours[0].tolist() == pytest.approx((plain * logits.softmax(dim=1)[0, 0] ** 0.3)[0].tolist(), rel=1e-12)


def test_attributes_are_never_read(logits, batch):
    other = batch._replace(a=torch.full_like(batch.a, -7))
    assert torch.equal(generalized_cross_entropy(logits, batch), generalized_cross_entropy(logits, other))


@pytest.mark.parametrize("q", [0, -0.1, 1.5, float("nan")])
def test_q_out_of_range_is_refused(logits, batch, q):
    with pytest.raises(ValueError, match=r"Expected `q` in \(0, 1\], but got"):
        generalized_cross_entropy(logits, batch, q=q)
