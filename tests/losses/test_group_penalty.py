import math

import pytest
import torch

from fedfacet.losses import group_penalty
from fedfacet.objectives.classification import cross_entropy
from fedfacet.types import Batch

RATES = ("tpr", "selection", "loss")


@pytest.fixture
def logits():
    return 3 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def batch_of(y, a):
    return Batch(torch.empty(len(y)), torch.tensor(y), torch.tensor(a))


@pytest.fixture
def batch():
    return batch_of([0, 1, 2, 1, 1, 0, 2, 1, 0, 1, 1, 2], [0, 0, 1, 1, 0, 2, 2, 2, 1, 1, 0, 0])


@pytest.mark.parametrize("rate", RATES)
def test_without_strength_it_is_the_cross_entropy(logits, batch, rate):
    assert torch.equal(group_penalty(logits, batch, strength=0.0, rate=rate), cross_entropy(logits, batch))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("num_groups", [2, 3])
def test_it_is_the_spread_of_the_groups_rates(logits, batch, rate, num_groups):
    """The formula of the docstring, in a loop; for two groups the squared difference."""
    a = [min(value, num_groups - 1) for value in batch.a.tolist()]
    batch = batch_of(batch.y.tolist(), a)
    by_group = {}
    for row, y, group in zip(logits.tolist(), batch.y.tolist(), a, strict=True):
        total = sum(map(math.exp, row))
        value = -math.log(math.exp(row[y]) / total) if rate == "loss" else math.exp(row[1]) / total
        if rate != "tpr" or y == 1:
            by_group.setdefault(group, []).append(value)
    rates = [sum(values) / len(values) for values in by_group.values()]
    assert len(rates) == num_groups
    mean = sum(rates) / num_groups
    spread = 2 * sum((value - mean) ** 2 for value in rates)
    if num_groups == 2:
        assert spread == pytest.approx((rates[1] - rates[0]) ** 2)
    expected = cross_entropy(logits, batch).item() + 0.7 * spread
    assert group_penalty(logits, batch, strength=0.7, rate=rate).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rate", RATES)
def test_a_group_without_a_rate_is_left_out(logits, rate):
    """All of one group, or positives of one group alone: there is nothing to compare."""
    alone = batch_of([1] * 6 + [0] * 6, [0] * 12)
    assert group_penalty(logits, alone, rate=rate).item() == pytest.approx(cross_entropy(logits, alone).item(), abs=1e-12)
    positives_of_one = batch_of([1] * 6 + [0] * 6, [0] * 6 + [1] * 6)
    differs = group_penalty(logits, positives_of_one, rate=rate).item() - cross_entropy(logits, positives_of_one).item()
    assert (abs(differs) < 1e-12) == (rate == "tpr")


@pytest.mark.parametrize("rate", RATES)
def test_following_its_gradient_brings_groups_together(rate):
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(1), requires_grad=True)
    batch = batch_of([1, 0] * 20, [0] * 20 + [1] * 20)

    def penalty():
        return group_penalty(logits, batch, rate=rate) - cross_entropy(logits, batch)

    before = penalty().item()
    for _ in range(20):
        (gradient,) = torch.autograd.grad(penalty(), logits)
        logits = (logits - 5 * gradient).detach().requires_grad_()
    assert penalty().item() < before / 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [({"strength": -1.0}, "loss.strength"), ({"rate": "fpr"}, "loss.rate"), ({"positive_class": 3}, "loss.positive_class")],
)
def test_bad_arguments_are_refused(logits, batch, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        group_penalty(logits, batch, **arguments)
