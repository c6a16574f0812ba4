"""Cover, disjoint, and exactly N_c classes each, or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import rng
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.synthetic import ClassesPerClientPartitioner


def deal(y, num_clients, classes_per_client, *, seed=0, **more):
    partitioner = ClassesPerClientPartitioner(num_clients=num_clients, classes_per_client=classes_per_client, seed=seed, **more)
    return partitioner.partition(np.asarray(y), np.zeros(len(y), np.int64))


def counts_of(y, partition):
    """Samples per client and class, shape (K, Y)."""
    labels = np.unique(y)
    return np.array([[(y[client] == label).sum() for label in labels] for client in partition.indices])


@st.composite
def federations(draw):
    """Numbers of clients and classes, N_c, and labels in any order that suffice."""
    num_classes = draw(st.integers(1, 12))
    each = draw(st.integers(1, num_classes))
    num_clients = draw(st.integers(-(-num_classes // each), 30))
    most = -(-num_clients * each // num_classes)
    sizes = draw(st.lists(st.integers(most, 3 * most), min_size=num_classes, max_size=num_classes))
    names = draw(st.lists(st.integers(0, 1000), min_size=num_classes, max_size=num_classes, unique=True))
    y = np.repeat(np.array(names), sizes)
    order = draw(st.sampled_from(["sorted", "reversed", "shuffled"]))
    y = {"sorted": np.sort(y), "reversed": np.sort(y)[::-1], "shuffled": rng.stream(0, "order").permutation(y)}[order]
    return np.ascontiguousarray(y), num_clients, each


@given(federations(), st.integers(0, 9))
def test_cover_disjoint_exact_and_balanced(federation, seed):
    y, num_clients, each = federation
    partition = deal(y, num_clients, each, seed=seed)
    dealt = np.concatenate(partition.indices)
    assert np.array_equal(np.sort(dealt), np.arange(len(y))), "every sample has exactly one owner"
    counts_KY = counts_of(y, partition)
    assert ((counts_KY > 0).sum(axis=1) == each).all(), "N_c is exact"
    holders_Y = (counts_KY > 0).sum(axis=0)
    assert holders_Y.sum() == num_clients * each
    assert holders_Y.max() - holders_Y.min() <= 1, "multiplicities differ by at most one"
    for column in counts_KY.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1, "a class is divided equally"


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 8), st.integers(0, 3))
def test_it_is_exact_or_refused_whatever_is_asked_for(labels, num_clients, each, seed):
    y = np.array(labels)
    try:
        partition = deal(y, num_clients, each, seed=seed)
    except InfeasiblePartitionError:
        sizes = np.unique(y, return_counts=True)[1]
        fewest, more = divmod(num_clients * each, len(sizes))
        impossible = len(sizes) < each or len(sizes) > num_clients * each
        assert impossible or (sizes < fewest).any() or (sizes > fewest).sum() < more, "refused without need"
        return
    assert ((counts_of(y, partition) > 0).sum(axis=1) == each).all()
    assert np.array_equal(np.sort(np.concatenate(partition.indices)), np.arange(len(y)))


@pytest.mark.parametrize("each", [1, 5, 10, 50])
def test_the_papers_federations(each):
    """CIFAR-100's 45,000 training samples: K = 100 clients of 450 samples, every class at exactly N_c clients."""
    y = np.repeat(np.arange(100), 450)
    partition = deal(y, 100, each)
    counts_KY = counts_of(y, partition)
    assert (counts_KY.sum(axis=1) == 450).all()
    assert ((counts_KY > 0).sum(axis=0) == each).all()
    assert set(counts_KY[counts_KY > 0]) == {450 // each}


def test_the_assignment_is_seeded_and_mixed():
    """No client's number, and no class's, says what it gets: over seeds every pair of both is equally likely."""
    y = np.repeat(np.arange(10), 4)
    met = np.zeros((20, 10))
    for seed in range(400):
        met += counts_of(y, deal(y, 20, 2, seed=seed)) > 0
    expected = 400 * 2 / 10
    assert abs(met - expected).max() < 5 * np.sqrt(400 * 0.2 * 0.8)


@pytest.mark.parametrize(
    ("sizes", "num_clients", "each", "said"),
    [
        ([9, 9], 10, 2, r"at least 2 samples for each of 10 clients, but got 18 samples: lower `partition\.num_clients`"),
        ([9, 9], 3, 3, r"at least 3 classes, as many as each client gets, but the column 'role' has 2"),
        ([9] * 7, 3, 2, r"3 clients of 2 classes to hold all 7 values of the column 'role', but they hold 6 at most"),
        ([9, 9, 1], 3, 2, r"at least 2 samples of a class, .* but the class 2 has 1"),
    ],
)
def test_what_cannot_be_is_refused_with_numbers(sizes, num_clients, each, said):
    y = np.repeat(np.arange(len(sizes)), sizes)
    with pytest.raises(InfeasiblePartitionError, match=said):
        deal(y, num_clients, each, label="role")


@pytest.mark.parametrize(
    ("num_classes", "each", "clients"), [(100, 5, 20), (100, 1, 100), (100, 50, 4), (2, 2, 4), (7, 2, 4), (9, 2, 5)]
)
def test_without_a_number_there_are_as_many_clients_as_hold_every_class(num_classes, each, clients):
    y = np.repeat(np.arange(num_classes), 18)
    assert deal(y, None, each).num_clients == clients
    assert ((counts_of(y, deal(y, None, each)) > 0).sum(axis=1) == each).all()


def test_small_classes_go_to_fewer_clients_where_some_must():
    """Four places for three classes of which only one has two samples."""
    y = np.array([7, 7, 8, 9])
    for seed in range(20):
        counts_KY = counts_of(y, deal(y, 2, 2, seed=seed))
        assert (counts_KY > 0).sum(axis=0).tolist() == [2, 1, 1]


@pytest.mark.parametrize("name", ["num_clients", "classes_per_client"])
def test_impossible_numbers_are_refused(name):
    with pytest.raises(ValueError, match=rf"`partition\.{name}` to be a whole number, 1 or larger, but got 0"):
        ClassesPerClientPartitioner(**{name: 0})
