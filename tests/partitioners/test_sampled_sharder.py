"""Clients of equal size with few classes or many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.synthetic import SampledSharder

CIFAR = np.repeat(np.arange(100), 450)


def deal(y, **settings):
    return SampledSharder(**settings).partition(np.asarray(y), np.zeros(len(y), np.int64))


def supports(y, partition):
    return np.array([len(np.unique(y[client])) for client in partition.indices])


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=200),
    st.integers(1, 25),
    st.integers(1, 4),
    st.integers(0, 60),
    st.integers(0, 9),
)
def test_cover_disjoint_and_equal_sizes_or_refused(labels, num_clients, min_classes, more, seed):
    y = np.array(labels)
    settings = {"num_clients": num_clients, "min_classes": min_classes, "max_classes": min_classes + more, "seed": seed}
    if len(y) < num_clients or len(np.unique(y)) < min_classes:
        with pytest.raises(InfeasiblePartitionError):
            deal(y, **settings)
        return
    partition = deal(y, **settings)
    sizes = [len(client) for client in partition.indices]
    assert np.array_equal(np.sort(np.concatenate(partition.indices)), np.arange(len(y)))
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_the_support_is_broad(seed):
    """Numbers of classes drawn uniformly from 1 to 50: a third of the clients below 17, a third above 34, and all of 450."""
    partition = deal(CIFAR, num_clients=100, seed=seed)
    held = supports(CIFAR, partition)
    assert {len(client) for client in partition.indices} == {450}
    assert held.min() <= 6
    assert held.max() >= 48
    assert 15 <= (held <= 17).sum() <= 50
    assert 15 <= (held >= 34).sum() <= 50


def test_who_has_many_classes_has_equally_many_samples_of_each():
    """But for the clients that came last: half of all clients' classes differ by one sample at most."""
    partition = deal(CIFAR, num_clients=100)
    spread = [np.ptp(np.unique(CIFAR[client], return_counts=True)[1]) for client in partition.indices]
    assert np.mean(np.array(spread) <= 1) > 0.5


def test_the_range_is_kept_while_classes_last():
    """The first client in turn gets what it drew; with a tenth of the samples each, nobody has run out before the second."""
    held = [supports(CIFAR, deal(CIFAR, num_clients=10, min_classes=30, max_classes=40, seed=s)) for s in range(5)]
    assert all(((counts >= 30) & (counts <= 40)).any() for counts in held)
    only = supports(CIFAR, deal(CIFAR, num_clients=100, min_classes=100, max_classes=100))
    assert (only == 100).sum() > 50


def test_turns_are_in_random_order():
    """Whoever comes last picks up the rest and has more classes, which over seeds is everybody alike."""
    y = np.repeat(np.arange(10), 30)
    held = np.array([supports(y, deal(y, num_clients=5, max_classes=3, seed=seed)) for seed in range(200)])
    assert held.max() > 3
    assert abs(held.mean(axis=0) - held.mean()).max() < 4 * held.std() / np.sqrt(200)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_clients": 0}, r"`partition\.num_clients` to be a whole number, 1 or larger, but got 0"),
        ({"min_classes": 0}, r"`partition\.min_classes` to be a whole number, 1 or larger, but got 0"),
        ({"min_classes": 9, "max_classes": 8}, r"`partition\.max_classes` to be a whole number, 9 or larger, but got 8"),
    ],
)
def test_impossible_numbers_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        SampledSharder(**settings)
