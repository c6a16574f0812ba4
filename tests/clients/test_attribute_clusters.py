import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import adjusted_rand_score

from fedfacet.clients.attribute_clusters import cluster_attributes


def samples(matrix, *, apart=10.0, classes_apart=10.0, width=6, seed=0):
    """Noise of variance 1, shifted along one axis by the attribute's value and along others by the class; y, a, features.

    A constant axis keeps the directions, which is all that a view's normalised samples have.
    """
    matrix = np.asarray(matrix)
    groups = np.repeat(np.arange(matrix.size), matrix.ravel())
    y, a = np.divmod(groups, matrix.shape[1])
    features = np.random.default_rng(seed).normal(size=(len(y), width))
    features[:, 0] += 60
    features[:, 1] += apart * a
    features[:, 2] += classes_apart * y
    return y, a, features


@pytest.mark.parametrize(
    "matrix",
    [
        [[90, 10], [10, 90]],
        [[18, 2], [2, 18]],
        [[90, 10], [90, 10]],
        [[90, 90], [10, 10]],
        [[170, 5], [5, 5]],
        [[50, 50], [0, 0]],  # one class
        [[40, 0], [0, 40]],  # each class has its own value: told by class 2, which has both
        [[20, 5], [5, 20], [20, 5], [5, 20]],
    ],
)
def test_attributes_are_found_whatever_their_shares(matrix):
    if matrix == [[40, 0], [0, 40]]:
        matrix = [*matrix, [20, 20]]
    y, a, features = samples(matrix)
    assert adjusted_rand_score(a, cluster_attributes([features], y)) == 1


def test_more_than_two_values_are_told_apart_if_they_are_looked_for():
    y, a, features = samples([[30, 10, 20], [5, 40, 20]])
    assert adjusted_rand_score(a, cluster_attributes([features], y, max_attributes=3)) == 1
    assert adjusted_rand_score(a, cluster_attributes([features], y, max_attributes=5)) == 1
    assert len(np.unique(cluster_attributes([features], y, max_attributes=2))) <= 2


def test_classes_may_lie_further_apart_than_attributes():
    y, a, features = samples([[80, 20], [20, 80]], apart=6, classes_apart=40)
    assert adjusted_rand_score(a, cluster_attributes([features], y)) > 0.95


def test_a_class_that_moves_along_with_the_attribute_is_taken_off():
    """The classes' effect has a part along the attribute's own axis, a quarter as long."""
    y, a, features = samples([[60, 40], [40, 60]], apart=8)
    features[:, 1] += 2 * y
    assert adjusted_rand_score(a, cluster_attributes([features], y)) > 0.95


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("matrix", [[[100, 0], [100, 0]], [[20, 0], [20, 0]], [[180, 0], [20, 0]]])
def test_no_attribute_is_invented(matrix, seed):
    """Also where the classes are far apart: what tells classes from each other is no attribute."""
    y, _, features = samples(matrix, seed=seed)
    assert not cluster_attributes([features, features[:, ::-1]], y).any()


def test_the_view_that_shows_it_best_is_used():
    y, a, features = samples([[60, 20], [20, 60]])
    blurred = samples([[60, 20], [20, 60]], apart=1.5, seed=1)[2]
    for views in ([blurred, features], [features, blurred]):
        assert adjusted_rand_score(a, cluster_attributes(views, y)) == 1


def test_order_rotation_and_scale_of_the_samples_do_not_matter():
    y, _, features = samples([[60, 20], [20, 60]], apart=6)
    labels = cluster_attributes([features], y)
    order = np.random.default_rng(0).permutation(len(y))
    assert adjusted_rand_score(labels[order], cluster_attributes([features[order]], y[order])) == 1
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    assert adjusted_rand_score(labels, cluster_attributes([7 * features @ rotation], y + 3)) == 1


def test_the_same_numbers_give_the_same_labels():
    y, _, features = samples([[30, 10], [10, 30]], apart=3)
    first = cluster_attributes([features], y, max_attributes=3, random_state=5)
    assert np.array_equal(first, cluster_attributes([features.copy()], y.copy(), max_attributes=3, random_state=5))


@settings(max_examples=20)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 30), st.integers(1, 4)),
        elements=st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, np.nan, np.inf]) | st.floats(-10, 10),
    ),
    st.integers(1, 3),
)
def test_whatever_comes_labels_come_out(view, num_classes):
    y = np.arange(len(view)) % num_classes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = cluster_attributes([view], y, max_attributes=3)
    assert labels.shape == y.shape
    assert labels.dtype == np.int64
    assert set(labels) <= {0, 1, 2}
    assert len(view) >= 10 or not labels.any(), "ten samples are the least"


def test_no_samples_no_views():
    assert cluster_attributes([np.empty((0, 3))], np.empty(0, dtype=np.int64)).shape == (0,)
    assert cluster_attributes([], np.zeros(4, dtype=np.int64)).tolist() == [0, 0, 0, 0]
