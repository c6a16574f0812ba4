import numpy as np
import pytest
from scipy.stats import chisquare

from fedfacet import rng
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.synthetic import IIDPartitioner


@pytest.mark.parametrize(("num_samples", "num_clients"), [(100, 24), (24, 24), (97, 1), (4800, 7)])
def test_everything_is_dealt_in_parts_of_almost_equal_size(num_samples, num_clients):
    labels = np.zeros(num_samples, dtype=np.int64)
    partition = IIDPartitioner(num_clients=num_clients).partition(labels, labels)
    sizes = [len(client) for client in partition.indices]
    assert len(sizes) == num_clients
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(np.sort(np.concatenate(partition.indices)), np.arange(num_samples))


def test_clients_have_the_distribution_of_all():
    """Sorted by class and attribute, so that parts cut without a shuffle would have one group each."""
    groups = np.repeat(np.arange(4), [4000, 3000, 2000, 1000])
    y, a = np.divmod(groups, 2)
    for client in IIDPartitioner(num_clients=10).partition(y, a).indices:
        observed = np.bincount(groups[client], minlength=4)
        assert chisquare(observed, f_exp=[400, 300, 200, 100]).pvalue > 1e-4


def test_too_few_samples_are_refused():
    labels = np.zeros(23, dtype=np.int64)
    with pytest.raises(InfeasiblePartitionError, match="1 sample for each of 24 clients, but got 23 samples"):
        IIDPartitioner(num_clients=24).partition(labels, labels)


def test_it_demands_nothing_and_takes_everything():
    partitioner = IIDPartitioner()
    assert partitioner.demand is None
    assert partitioner.uses_all_samples


def test_no_clients_are_refused():
    with pytest.raises(ValueError, match=r"`partition\.num_clients` to be a whole number, 1 or larger"):
        IIDPartitioner(num_clients=0)


def test_clients_get_the_parts_of_one_shuffle_in_order():
    labels = np.zeros(17, dtype=np.int64)
    partition = IIDPartitioner(num_clients=5, seed=3).partition(labels, labels)
    parts = np.array_split(rng.stream(3, "partition").permutation(17), 5)
    assert [client.tolist() for client in partition.indices] == [np.sort(part).tolist() for part in parts]
