"""The area under the ROC curve, against pairs counted one by one and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import binary_auroc, multiclass_auroc

from fedfacet.metrics.auc import auc_of


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_it_is_torchmetrics(num_classes):
    draw = np.random.default_rng(num_classes)
    y = draw.integers(num_classes, size=300)
    logits = (draw.normal(size=(300, num_classes)) + 1.5 * np.eye(num_classes)[y]).astype(np.float32)
    probabilities = torch.tensor(logits, dtype=torch.float64).softmax(dim=1)
    assert auc_of(logits, y) == pytest.approx(float(multiclass_auroc(probabilities, torch.tensor(y), num_classes)), abs=1e-5)
    if num_classes == 2:
        assert auc_of(logits, y) == pytest.approx(float(binary_auroc(probabilities[:, 1], torch.tensor(y))), abs=1e-5)


@pytest.mark.parametrize("scale", [1, 30, 500])
def test_of_many_classes_it_is_the_mean_over_each_ones_log_odds(scale):
    """As the formula says it, class by class, also where the softmax rounds to 0 and 1."""
    draw = np.random.default_rng(scale)
    y = draw.integers(40, size=400)
    logits = (scale * (draw.normal(size=(400, 40)) + np.eye(40)[y])).astype(np.float32)
    z = logits.astype(np.float64)
    odds = [z[:, c] - logsumexp(np.delete(z, c, axis=1), axis=1) for c in range(40)]
    expected = np.mean([roc_auc_score(y == c, s_c) for c, s_c in enumerate(odds)])
    assert auc_of(logits, y) == pytest.approx(expected, abs=1e-9)


def test_ties_count_half_and_sure_networks_are_ranked():
    assert auc_of(np.zeros((4, 2), np.float32), np.array([0, 1, 1, 1])) == 0.5
    sure = np.array([[0, 500], [0, 400], [0, 300], [0, 200]], np.float32)  # the softmax of each rounds to (0, 1)
    assert auc_of(sure, np.array([1, 0, 1, 0])) == 0.75


def test_a_class_that_nobody_has_does_not_count():
    draw = np.random.default_rng(0)
    logits, y = draw.normal(size=(50, 3)).astype(np.float32), draw.integers(2, size=50)
    pairs = [(float(np.exp(z[c]) / np.exp(z).sum()), c == label) for c in (0, 1) for z, label in zip(logits, y, strict=True)]
    expected = []
    for c in (0, 1):
        of_class = pairs[50 * c : 50 * c + 50]
        wins = [(s > t) + (s == t) / 2 for s, here in of_class if here for t, there in of_class if not there]
        expected.append(sum(wins) / len(wins))
    assert auc_of(logits, y) == pytest.approx(np.mean(expected), abs=1e-12)


def test_without_two_classes_or_with_infinity_there_is_none():
    assert math.isnan(auc_of(np.zeros((3, 2), np.float32), np.ones(3, np.int64)))
    assert math.isnan(auc_of(np.array([[np.inf, 0], [0, 1]], np.float32), np.array([0, 1])))
    assert math.isnan(auc_of(np.empty((0, 2), np.float32), np.empty(0, np.int64)))
