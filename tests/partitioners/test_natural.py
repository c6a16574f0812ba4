"""A client per value of a column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.natural import NaturalPartitioner


@given(st.lists(st.integers(-2, 6), min_size=1, max_size=60), st.integers(1, 5))
def test_a_client_is_all_samples_of_a_value(labels, min_samples):
    writer = np.array(labels)
    expected = [np.flatnonzero(writer == value) for value in range(7) if (writer == value).sum() >= min_samples]
    partitioner = NaturalPartitioner(label="writer", min_samples=min_samples)
    if not expected:
        with pytest.raises(InfeasiblePartitionError, match=f"'writer' with at least {min_samples} samples"):
            partitioner.partition(writer, 0 * writer)
        return
    partition = partitioner.partition(writer, 0 * writer)
    assert [client.tolist() for client in partition.indices] == [positions.tolist() for positions in expected]


def test_an_impossible_minimum_is_refused():
    with pytest.raises(ValueError, match=r"`partition\.min_samples` to be a whole number, 1 or larger, but got 0"):
        NaturalPartitioner(min_samples=0)
