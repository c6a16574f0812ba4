"""Validation samples belong to nobody else."""

from dataclasses import replace

import numpy as np
import pytest

from fedfacet.data.digits import Digits
from fedfacet.data.federated import deal, partition_and_hold_out
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner
from fedfacet.partitioners.natural import NaturalPartitioner
from fedfacet.partitioners.synthetic import IIDPartitioner
from fedfacet.types import Partition


@pytest.fixture(scope="module")
def dataset():
    """The digits with their validation samples given back to training: 1,797 less the 416 of the test set."""
    digits = Digits().load(np.array([[352, 128], [128, 352]]))
    return replace(digits, train=np.sort(np.concatenate([digits.train, digits.val])), val=None)


def cells(dataset, indices):
    return np.bincount(2 * dataset.y[indices] + dataset.a[indices], minlength=4).tolist()


@pytest.mark.parametrize(
    ("partitioner", "per_cell"),
    [
        # The smallest cells have 128 + 104 samples, of which the two clients take 50 each.
        (InteractionMatrixPartitioner([{"count": 2, "matrix": [[50, 50], [50, 50]]}]), 132),
        # A tenth of the smallest cell, set aside before everything is dealt.
        (IIDPartitioner(num_clients=5), 23),
    ],
)
def test_equal_cells_that_nobody_holds(dataset, partitioner, per_cell):
    partition, val = partition_and_hold_out(dataset, partitioner)
    assert cells(dataset, val) == [per_cell] * 4
    held = np.concatenate(partition.indices)
    assert not np.intersect1d(val, held).size
    assert not np.intersect1d(val, dataset.test).size
    assert np.isin(held, dataset.train).all()


def test_an_official_validation_set_is_kept(dataset):
    official = replace(dataset, train=dataset.train[100:], val=dataset.train[:100])
    _, val = partition_and_hold_out(official, IIDPartitioner(num_clients=5))
    assert (val == official.val).all()


def test_a_cell_with_nothing_left_leaves_no_validation(dataset):
    demand = np.array(cells(dataset, dataset.train)).reshape(2, 2)
    demand[0, 0] -= 5
    _, val = partition_and_hold_out(dataset, InteractionMatrixPartitioner([{"count": 1, "matrix": demand.tolist()}]))
    assert not len(val)


@pytest.mark.parametrize(
    "partitioner", [IIDPartitioner(num_clients=5), InteractionMatrixPartitioner([{"count": 1, "matrix": [[9, 9], [0, 9]]}])]
)
def test_a_cell_that_the_data_set_does_not_have_asks_for_nothing(dataset, partitioner):
    """As where one hospital has never seen a disease."""
    present = (dataset.y != 1) | (dataset.a != 0)
    train, test = (positions[present[positions]] for positions in (dataset.train, dataset.test))
    _, val = partition_and_hold_out(replace(dataset, train=train, test=test), partitioner)
    left, per_cell = cells(dataset, val)[2], set(np.delete(cells(dataset, val), 2))
    assert not left
    assert len(per_cell) == 1
    assert per_cell.pop() > 0


def test_samples_are_dealt_by_the_partitioners_own_column(dataset):
    """Metadata in place of classes: a client per writer, in positions of the data set."""
    writer = np.arange(len(dataset.y)) % 7
    known = replace(dataset, columns={"writer": writer.astype(np.int16)})
    partition, val = partition_and_hold_out(known, NaturalPartitioner(label="writer"))
    assert [set(writer[client]) for client in partition.indices] == [{value} for value in range(7)]
    assert len(val) + sum(map(len, partition.indices)) == len(dataset.train)


def test_a_column_that_is_not_there_is_named_with_those_that_are(dataset):
    with pytest.raises(InfeasiblePartitionError, match=r"`partition\.label` to be one of y, a, .* but got 'role'"):
        partition_and_hold_out(dataset, NaturalPartitioner(label="role"))


def test_clients_without_samples_are_counted(dataset):
    """Before any training, which would wait for their first batch forever."""

    class Greedy(IIDPartitioner):
        def partition(self, y, a):
            return Partition((np.arange(len(y)), *[np.arange(0)] * 999))

    with pytest.raises(InfeasiblePartitionError, match="but 999 of 1000 would hold none, client 1 the first"):
        partition_and_hold_out(dataset, Greedy())


def of(*clients):
    return Partition(tuple(np.array(client) for client in clients))


@pytest.mark.parametrize(
    ("dealt", "message"),
    [
        ([np.arange(3)], "but got list: return `Partition"),
        (of([0, 1], [2.0, 3.0]), "but got numbers of type float64"),
        (of([0, 1], [-1, 3]), "but client 1 got -1: leave it out"),
        (of([0, 1], [2, 10**6]), "but client 1 got 1000000"),
        (of([0, 1], [5, 4]), "but those of client 1 are not: `np.unique` sorts them"),
        (of([0, 1], [3, 4], [2, 3]), "of nobody else, but clients 1 and 2 both got 3"),
        (of([0, 1, 1], [3]), "but those of client 0 are not"),
    ],
)
@pytest.mark.parametrize("keep_together", [None, "writer"])
def test_a_partitioner_that_breaks_its_contract_is_told(dealt, message, keep_together, dataset):
    """A position below 0 would count from the end, one with two owners would train twice, and nobody would know."""

    class Own(IIDPartitioner):
        def partition(self, y, a):
            return dealt

    dataset = replace(dataset, columns={"writer": np.arange(len(dataset.y)) // 2})
    with pytest.raises((TypeError, ValueError), match=f"Expected Own.partition to return a Partition .*{message}"):
        partition_and_hold_out(dataset, Own(), keep_together=keep_together)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": lambda d: d.a + 1}, "Expected `a` from 0 to 1, since there are 2 names, but got 1 to 2"),
        ({"y": lambda d: d.y - 1}, "Expected `y` from 0 to"),
        ({"test": lambda d: d.train[:3]}, "Expected every sample in one split, but `test` has some of another one"),
    ],
)
def test_data_that_would_count_wrong_are_not_dealt(changes, message, dataset):
    changed = replace(dataset, **{name: change(dataset) for name, change in changes.items()})
    with pytest.raises(ValueError, match=message):
        deal(changed, IIDPartitioner(num_clients=2))
