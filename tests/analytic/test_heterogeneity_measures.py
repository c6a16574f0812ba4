"""The three measures at their extremes, on matrices whose entropies are known, and against other people's implementations."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.metrics import normalized_mutual_info_score

from fedfacet.heterogeneity import InteractionMatrix, measure_federation


def triplet(counts):
    return tuple(InteractionMatrix(counts).triplet)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[5, 5], [5, 5]], (0, 0, 0)),  # balanced: H(Y) = H(A) = log 2, I = 0
        ([[5, 5], [0, 0]], (1, 0, 0)),  # one class: H(Y) = 0
        ([[5, 0], [5, 0]], (0, 1, 0)),  # one attribute value: H(A) = 0
        ([[5, 0], [0, 5]], (0, 0, 1)),  # the attribute is the class: I = H(Y) = H(A)
        ([[0, 5], [5, 0]], (0, 0, 1)),
        ([[5, 0], [0, 0]], (1, 1, 0)),  # one cell: nothing to correlate
        ([[0, 0], [0, 0]], (0, 0, 0)),  # no sample at all
        ([[7]], (0, 0, 0)),  # one class and one attribute value are all there is
        ([[3, 3, 3]], (0, 0, 0)),
        ([[3], [0]], (1, 0, 0)),
        (np.eye(4), (0, 0, 1)),
        ([[1, 0], [1, 0], [0, 1], [0, 1]], (0, 0, 2 * np.log(2) / (np.log(4) + np.log(2)))),  # A a function of Y: I = H(A)
    ],
)
def test_extremes(counts, expected):
    assert triplet(counts) == pytest.approx(expected, abs=1e-12)


def test_a_quarter_and_three_quarters():
    """H(1/4, 3/4) = log 4 - 3/4 log 3; rows and columns are independent, so the correlation is zero."""
    imbalance = 1 - (np.log(4) - 0.75 * np.log(3)) / np.log(2)
    assert triplet([[1, 3], [3, 9]]) == pytest.approx((imbalance, imbalance, 0), abs=1e-12)


@st.composite
def matrices(draw, min_size=1, max_count=200):
    rows, columns = draw(st.integers(min_size, 5)), draw(st.integers(min_size, 4))
    cells = st.lists(st.integers(0, max_count), min_size=rows * columns, max_size=rows * columns)
    return np.array(draw(cells)).reshape(rows, columns)


@given(matrices())
def test_every_measure_lies_between_zero_and_one(counts):
    values = triplet(counts)
    assert all(0 <= value <= 1 for value in values)
    assert all(type(value) is float for value in values)


@given(matrices(min_size=2))
def test_scipy_agrees_on_the_imbalances(counts):
    if counts.sum() == 0:
        return
    class_imbalance, attribute_imbalance, _ = triplet(counts)
    assert class_imbalance == pytest.approx(1 - entropy(counts.sum(axis=1)) / np.log(counts.shape[0]), abs=1e-12)
    assert attribute_imbalance == pytest.approx(1 - entropy(counts.sum(axis=0)) / np.log(counts.shape[1]), abs=1e-12)


@given(matrices(min_size=2, max_count=20))
def test_scikit_learn_agrees_on_the_correlation(counts):
    # scikit-learn calls two constants perfectly correlated, where we have to say that there is nothing to correlate.
    if (counts > 0).sum() <= 1:
        return
    pairs = [(y, a) for (y, a), n in np.ndenumerate(counts) for _ in range(n)]
    y, a = zip(*pairs, strict=True)
    expected = normalized_mutual_info_score(y, a, average_method="arithmetic")
    assert triplet(counts)[2] == pytest.approx(expected, abs=1e-9)


@given(matrices(), st.randoms(use_true_random=False))
def test_names_of_classes_and_attributes_do_not_matter(counts, random):
    rows, columns = (random.sample(range(size), size) for size in counts.shape)
    assert triplet(counts[rows][:, columns]) == pytest.approx(triplet(counts), abs=1e-9)


@given(matrices(), st.integers(2, 50))
def test_the_number_of_samples_does_not_matter(counts, factor):
    assert triplet(counts * factor) == pytest.approx(triplet(counts), abs=1e-9)


@given(matrices())
def test_the_transpose_swaps_the_imbalances(counts):
    class_imbalance, attribute_imbalance, correlation = triplet(counts)
    assert triplet(counts.T) == pytest.approx((attribute_imbalance, class_imbalance, correlation), abs=1e-9)


def test_pooling_can_hide_what_every_client_has():
    """Two clients, each all of one cell, mirror each other: fully imbalanced one by one, perfectly correlated together."""
    measured = measure_federation([InteractionMatrix([[9, 0], [0, 0]]), InteractionMatrix([[0, 0], [0, 9]])])
    assert tuple(measured.client_mean) == pytest.approx((1, 1, 0))
    assert tuple(measured.global_triplet) == pytest.approx((0, 0, 1))


@pytest.mark.parametrize("counts", [[1, 2], [[1, -1]], [[1, np.nan]], [[np.inf, 1]], [], [[]]])
def test_what_is_no_matrix_of_counts_is_refused(counts):
    with pytest.raises(ValueError, match="Expected an interaction matrix of shape"):
        InteractionMatrix(counts)


def test_counting_labels_is_counting_labels():
    cells = list(itertools.product(range(3), range(2)))
    y, a = np.array(cells * 2 + [(2, 1)]).T
    assert InteractionMatrix.from_labels(y, a, 4, 3).counts.tolist() == [[2, 2, 0], [2, 2, 0], [2, 3, 0], [0, 0, 0]]


def test_the_counts_cannot_be_changed_afterwards():
    counts = np.ones((2, 2))
    matrix = InteractionMatrix(counts)
    counts[0, 0] = 100
    assert matrix.total == 4
    with pytest.raises(ValueError, match="read-only"):
        matrix.counts[0, 0] = 100
