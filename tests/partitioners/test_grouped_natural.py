"""Clients that are groups of people."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.natural import GroupedNaturalPartitioner


@given(
    st.lists(st.integers(-1, 9), min_size=1, max_size=80),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_person_is_with_one_client_and_clients_have_as_many_as_they_should(labels, sizes, rest, seed):
    writer = np.array(labels)
    people = set(writer[writer >= 0].tolist())
    partitioner = GroupedNaturalPartitioner(sizes=sizes, rest=rest, seed=seed)
    if len(people) < sum(sizes) + rest:
        with pytest.raises(
            InfeasiblePartitionError, match=f"{sum(sizes) + rest} values or more .*'writer', but got {len(people)}"
        ):
            partitioner.partition(writer, 0 * writer)
        return
    clients = partitioner.partition(writer, 0 * writer).indices
    groups = [set(writer[client].tolist()) for client in clients]
    assert [len(group) for group in groups[: len(sizes)]] == sizes
    assert len(groups) == len(sizes) + rest
    assert sum(map(len, groups)) == len(set().union(*groups)), "nobody is with two"
    assert set().union(*groups) <= people
    assert not rest or set().union(*groups) == people
    for client, group in zip(clients, groups, strict=True):
        assert client.tolist() == [position for position, who in enumerate(labels) if who in group]
    again = GroupedNaturalPartitioner(sizes=sizes, rest=rest, seed=seed).partition(writer, 0 * writer)
    assert all(np.array_equal(a, b) for a, b in zip(again.indices, clients, strict=True))


def test_the_seed_chooses_who_is_with_whom():
    writer = np.repeat(np.arange(40), 3)
    drawn = {GroupedNaturalPartitioner(sizes=[5], rest=False, seed=seed).partition(writer, writer).digest for seed in range(5)}
    assert len(drawn) == 5


@pytest.mark.parametrize("sizes", [[], [3, 0], [2.5]])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match=r"Expected `partition\.sizes"):
        GroupedNaturalPartitioner(sizes=sizes)
