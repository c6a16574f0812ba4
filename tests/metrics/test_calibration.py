"""The expected calibration error, against a loop over bins and scikit-learn's reliability curve."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.calibration import calibration_curve

from fedfacet.metrics.calibration import calibration_error


def drawn(num_classes, size=500, scale=1.5):
    draw = np.random.default_rng(num_classes)
    y = draw.integers(num_classes, size=size)
    return (scale * (draw.normal(size=(size, num_classes)) + np.eye(num_classes)[y])).astype(np.float32), y


def looped(logits, y, bins):
    """Bin by bin, as the formula says."""
    p = softmax(logits.astype(np.float64), axis=1)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    total = 0.0
    for b in range(bins):
        own = (b / bins <= confidence) & ((confidence < (b + 1) / bins) | (b == bins - 1))
        if own.any():
            total += own.mean() * abs(right[own].mean() - confidence[own].mean())
    return total


@pytest.mark.parametrize("bins", [1, 10, 15, 40])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_it_is_the_formula(num_classes, bins):
    logits, y = drawn(num_classes)
    expected = looped(logits, y, bins)
    assert calibration_error(logits, y, bins=bins) == pytest.approx(expected, abs=1e-5)
    assert expected > 0.005


def test_it_is_scikit_learns_reliability_curve():
    logits, y = drawn(3)
    p = softmax(logits.astype(np.float64), axis=1)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    accuracies, confidences = calibration_curve(right, confidence, n_bins=15)
    sizes = np.histogram(confidence, bins=15, range=(0, 1))[0]
    expected = np.average(np.abs(accuracies - confidences), weights=sizes[sizes > 0])
    assert calibration_error(logits, y) == pytest.approx(expected, abs=1e-5)


def test_it_is_the_second_authors_code():
    """Their bins have the upper end and not the lower, which matters only on an edge; 15 is their default."""
    logits, y = drawn(3)
    p = softmax(logits.astype(np.float64), axis=1)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    edges = np.linspace(0, 1, 16)
    own = [(low < confidence) & (confidence <= high) for low, high in itertools.pairwise(edges)]
    expected = sum(np.abs(confidence[one].mean() - right[one].mean()) * one.mean() for one in own if one.any())
    assert calibration_error(logits, y) == pytest.approx(expected, abs=1e-5)


def test_who_is_sure_and_right_half_the_time_is_wrong_by_a_half():
    """Also where softmax rounds to 1, which is in the last bin and not one of its own."""
    sure = np.array([[400, 0], [400, 0], [2.7, 0], [2.7, 0]], np.float32)  # the last two have 0.937, above 14/15
    assert calibration_error(sure[:2], np.array([0, 1])) == pytest.approx(0.5, abs=1e-6)
    in_one_bin = abs(0.5 - (2 + 2 * softmax([2.7, 0])[0]) / 4)
    assert calibration_error(sure, np.array([1, 1, 0, 0])) == pytest.approx(in_one_bin, abs=1e-6)


def test_who_is_as_sure_as_it_is_right_has_none():
    logits = np.log(np.tile(np.array([[0.75, 0.25]], np.float32), (400, 1)))
    assert calibration_error(logits, np.repeat([0, 1], [300, 100])) == pytest.approx(0, abs=1e-5)


def test_without_samples_or_with_infinity_there_is_none():
    assert math.isnan(calibration_error(np.empty((0, 2), np.float32), np.empty(0, np.int64)))
    assert math.isnan(calibration_error(np.array([[np.inf, 0], [0, 1]], np.float32), np.array([0, 1])))
