import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
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
    counts = GroupCounts(np.array([[3, 1], [0, 0], [0, 1], [5, 0]]), loss_sum=2.0)
    assert counts.correct == (3, 0, 1, 0)
    assert counts.total == (4, 0, 1, 5)
    assert counts.accuracies[0] == 0.75
    assert math.isnan(counts.accuracies[1])
    assert counts.accuracies[2:] == (1.0, 0.0)
    assert counts.average_accuracy == 0.4
    assert counts.worst_group_accuracy == 0.0
    assert counts.loss == 0.2
    assert counts.adjusted_accuracy((1, 0, 3, 4)) == pytest.approx((0.75 + 3 + 0) / 8)
    assert math.isnan(counts.adjusted_accuracy((1, 1, 1, 1)))


def test_without_samples_everything_is_nan():
    counts = GroupCounts(np.zeros((2, 2), dtype=np.int64), loss_sum=0.0)
    values = (*counts.accuracies, counts.average_accuracy, counts.worst_group_accuracy, counts.loss)
    assert all(math.isnan(value) for value in (*values, counts.adjusted_accuracy((1, 1)), counts.adjusted_accuracy((0, 0))))


samples = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)), max_size=60)


def columns(samples):
    """Return the predicted classes, classes and attribute values of samples."""
    return tuple(np.array(samples, dtype=np.int64).reshape(-1, 3).T)


@given(samples)
def test_every_sample_is_counted_in_its_group_under_its_predicted_class(samples):
    counts = GroupCounts.of(*columns(samples), 3, 2, loss_sum=1.5)
    assert counts.confusion.shape == (6, 3)
    assert counts.confusion.dtype == np.int64
    assert {(g, p): n for (g, p), n in np.ndenumerate(counts.confusion) if n} == Counter((y * 2 + a, p) for p, y, a in samples)
    assert counts.loss_sum == 1.5


@settings(max_examples=40)
@given(samples, samples)
def test_counts_of_two_sets_add_up_to_those_of_both(left, right):
    both = GroupCounts.of(*columns(left), 3, 2, 0.5) + GroupCounts.of(*columns(right), 3, 2, 0.25)
    assert both == GroupCounts.of(*columns(left + right), 3, 2, 0.75)
    assert both != GroupCounts.of(*columns(left + right), 3, 2, 0.5)
    assert both != GroupCounts.of(*columns([*left, *right, (0, 1, 1)]), 3, 2, 0.75)


@settings(max_examples=40)
@given(samples, st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_the_torchmetrics_say_the_same(samples, weights):
    predicted, y, a = columns(samples)
    counts = GroupCounts.of(predicted, y, a, 3, 2)
    correct, total = count_groups(*map(torch.from_numpy, (predicted, y, a)), 3, 2)
    assert (counts.correct, counts.total) == (tuple(correct.tolist()), tuple(total.tolist()))
    pairs = [(GroupAccuracy(3, 2), counts.accuracies), (WorstGroupAccuracy(3, 2), counts.worst_group_accuracy)]
    if any(weights):
        pairs.append((AdjustedAccuracy(3, 2, group_weights=weights), counts.adjusted_accuracy(weights)))
    for metric, expected in pairs:
        metric.update_counts(correct, total)
        assert metric.compute().flatten().tolist() == pytest.approx(
            list(expected) if isinstance(expected, tuple) else [expected], abs=1e-6, nan_ok=True
        )
