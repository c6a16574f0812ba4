import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.metrics.group_accuracy import AdjustedAccuracy, GroupAccuracy, WorstGroupAccuracy
from fedfacet.metrics.group_counts import GroupCounts, count_groups, group_index, group_key


def test_groups_are_numbered_class_by_class():
    y, a = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    assert group_index(y, a, 3).tolist() == [0, 1, 2, 3, 4, 5]
    assert [group_key(group, 3) for group in range(6)] == ["y0_a0", "y0_a1", "y0_a2", "y1_a0", "y1_a1", "y1_a2"]


def test_counting_a_batch():
    predictions, y, a = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    correct, total = count_groups(predictions, y, a, 2, 3)
    assert correct.tolist() == [1, 0, 0, 0, 2, 0]
    assert total.tolist() == [2, 0, 0, 0, 3, 0]


def test_an_empty_batch_counts_nothing():
    nothing = torch.empty(0, dtype=torch.int64)
    assert [counts.tolist() for counts in count_groups(nothing, nothing, nothing, 2, 2)] == [[0] * 4, [0] * 4]


def test_accuracies_by_hand():
    counts = GroupCounts(correct=(3, 0, 1, 0), total=(4, 0, 1, 5), loss_sum=2.0)
    assert counts.accuracies[0] == 0.75
    assert math.isnan(counts.accuracies[1])
    assert counts.accuracies[2:] == (1.0, 0.0)
    assert counts.average_accuracy == 0.4
    assert counts.worst_group_accuracy == 0.0
    assert counts.loss == 0.2
    assert counts.adjusted_accuracy((1, 0, 3, 4)) == pytest.approx((0.75 + 3 + 0) / 8)
    assert math.isnan(counts.adjusted_accuracy((1, 1, 1, 1)))


def test_without_samples_everything_is_nan():
    counts = GroupCounts(correct=(0, 0), total=(0, 0), loss_sum=0.0)
    values = (*counts.accuracies, counts.average_accuracy, counts.worst_group_accuracy, counts.loss)
    assert all(math.isnan(value) for value in (*values, counts.adjusted_accuracy((1, 1)), counts.adjusted_accuracy((0, 0))))


cells = st.integers(0, 50).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


@given(st.lists(cells, min_size=6, max_size=6), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_the_torchmetrics_say_the_same(cells, weights):
    correct, total = zip(*cells, strict=True)
    counts = GroupCounts(correct, total, loss_sum=0.0)
    pairs = [(GroupAccuracy(3, 2), counts.accuracies), (WorstGroupAccuracy(3, 2), counts.worst_group_accuracy)]
    if any(weights):
        pairs.append((AdjustedAccuracy(3, 2, group_weights=weights), counts.adjusted_accuracy(weights)))
    for metric, expected in pairs:
        metric.update_counts(torch.tensor(correct), torch.tensor(total))
        assert metric.compute().flatten().tolist() == pytest.approx(
            list(expected) if isinstance(expected, tuple) else [expected], abs=1e-6, nan_ok=True
        )
