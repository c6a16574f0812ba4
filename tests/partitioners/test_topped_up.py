import hashlib

import numpy as np
import pytest

from fedfacet.partitioners.base import topped_up
from fedfacet.types import Partition, cut_partition


def one_at_a_time(owned, least):
    for client in owned:
        while len(client) < least:
            client.append(max(owned, key=len).pop())
    return [sorted(client) for client in owned]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_each_sample_comes_from_the_first_of_those_that_have_most(least):
    draw = np.random.default_rng(least)
    for _ in range(40):
        sizes = draw.multinomial(30, draw.dirichlet(np.full(8, 0.4)))
        owned = [part.tolist() for part in np.split(draw.permutation(30), np.cumsum(sizes)[:-1])]
        expected = one_at_a_time([list(client) for client in owned], least)
        assert [client.tolist() for client in topped_up(owned, least).indices] == expected


def test_a_partition_is_known_by_every_clients_size_and_samples():
    indices = (np.array([0, 5, 9]), np.array([], dtype=np.int64), np.array([2]))
    sha = hashlib.sha256()
    for client in indices:
        sha.update(len(client).to_bytes(8, "little") + client.astype("<i8").tobytes())
    partition = Partition(indices)
    assert partition.digest == sha.hexdigest()
    assert cut_partition(*partition.joined).digest == partition.digest
    assert Partition(()).digest == hashlib.sha256().hexdigest()
