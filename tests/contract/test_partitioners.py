"""What every federation of conf/partition keeps to."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedfacet.errors import InfeasiblePartitionError


@pytest.fixture
def partitioner(partition_option, make_part):
    return make_part("partition", partition_option)


@pytest.fixture
def pool(partitioner):
    """Classes and attributes of enough samples, sorted by both, as a data set on disk would list them; or their writers."""
    if partitioner.label == "writer":
        return np.arange(1200) // 6, np.arange(1200) % 2
    cells = np.full((3, 2), 200) if partitioner.demand is None else partitioner.demand + 25
    return np.divmod(np.repeat(np.arange(cells.size), cells.ravel()), cells.shape[1])


def test_clients_are_sorted_disjoint_and_in_range(partitioner, pool):
    partition = partitioner.partition(*pool)
    assert partition.num_clients == len(partition.indices) > 1
    for client in partition.indices:
        assert client.dtype == np.int64
        assert len(client) > 0
        assert (np.diff(client) > 0).all(), "sorted, no sample twice"
        assert client[0] >= 0
        assert client[-1] < len(pool[0])
    dealt = np.concatenate(partition.indices)
    assert len(np.unique(dealt)) == len(dealt), "no sample has two owners"
    assert not partitioner.uses_all_samples or len(dealt) == len(pool[0])


def test_the_demand_is_what_is_dealt(partitioner, pool):
    if partitioner.demand is None:
        assert partitioner.uses_all_samples, "what is not asked for by cell is all there is"
        return
    dealt = np.concatenate(partitioner.partition(*pool).indices)
    cells = np.zeros_like(partitioner.demand)
    np.add.at(cells, (pool[0][dealt], pool[1][dealt]), 1)
    assert cells.tolist() == partitioner.demand.tolist()
    assert partitioner.demand.dtype == np.int64


def test_it_is_the_same_every_time(partition_option, make_part, pool):
    first, again = (make_part("partition", partition_option).partition(*pool) for _ in range(2))
    assert first.digest == again.digest
    for left, right in zip(first.indices, again.indices, strict=True):
        assert np.array_equal(left, right)


def test_another_seed_deals_other_samples(partition_option, make_part, pool):
    digests = {make_part("partition", partition_option, seed=seed).partition(*pool).digest for seed in range(4)}
    assert len(digests) == 4


def test_labels_are_not_written_to(partitioner, pool):
    before = [labels.copy() for labels in pool]
    partitioner.partition(*pool)
    assert all(np.array_equal(labels, copy) for labels, copy in zip(pool, before, strict=True))


def test_the_order_of_the_data_set_does_not_leak(partitioner, pool):
    """Within a cell, a sample's place in the list says nothing about its owner, whatever the list is sorted by."""
    y, a = pool
    owner = np.full(len(y), -1)
    for client_id, client in enumerate(partitioner.partition(y, a).indices):
        owner[client] = client_id
    for cell in np.unique(y * 100 + a):
        dealt = owner[y * 100 + a == cell]
        place = np.flatnonzero(dealt >= 0)
        if len(set(dealt[place])) < 2:
            continue  # one owner, nothing to leak
        allowed = 4 / np.sqrt(len(place))
        assert abs(spearmanr(place, dealt[place]).statistic) < max(allowed, 0.1)


def test_too_few_samples_are_refused_with_numbers(partitioner, pool):
    """Naming the cell where cells are asked for, what was wanted, and what there is."""
    y, a = pool
    if not hasattr(partitioner, "num_clients") and partitioner.demand is None:
        pytest.skip("takes as many clients as there are")
    if partitioner.demand is None:
        wanted, few = partitioner.num_clients, max(1, partitioner.num_clients - 4)
        message = f"Expected at least .* for each of {wanted} clients, but got {few} samples"
        with pytest.raises(InfeasiblePartitionError, match=message):
            partitioner.partition(y[:few], a[:few])
        return
    for label, attribute in np.ndindex(partitioner.demand.shape):
        wanted = int(partitioner.demand[label, attribute])
        cell = np.flatnonzero((y == label) & (a == attribute))
        kept = np.delete(np.arange(len(y)), cell[wanted - 1 :])
        with pytest.raises(InfeasiblePartitionError) as refusal:
            partitioner.partition(y[kept], a[kept])
        message = str(refusal.value)
        assert f"{wanted} samples in the cell class {label}, attribute {attribute}" in message
        assert f"has {wanted - 1}: " in message


def test_a_billion_clients_and_numbers_that_are_none_are_refused_at_once(partition_option, make_part, pool):
    partitioner = make_part("partition", partition_option, num_clients=10**9)
    with pytest.raises(InfeasiblePartitionError, match="for each of 1000000000 clients, but got"):
        partitioner.partition(*pool)
    for value in (0, -1, 2.5, float("nan"), True):
        with pytest.raises(ValueError, match=r"`partition\.num_clients` to be a whole number"):
            make_part("partition", partition_option, num_clients=value)


def test_no_samples_at_all_are_refused(partitioner):
    with pytest.raises(InfeasiblePartitionError):
        partitioner.partition(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


def test_negative_seeds_are_refused(partition_option, make_part, pool):
    with pytest.raises(ValueError, match="`seed` to be 0 or larger"):
        make_part("partition", partition_option, seed=-1).partition(*pool)
