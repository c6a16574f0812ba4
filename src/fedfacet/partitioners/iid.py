"""Identically distributed clients."""

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_whole
from fedfacet.partitioners.base import Partitioner, check_enough
from fedfacet.types import Partition, cut_partition


class IIDPartitioner(Partitioner):
    """Shuffle all samples and cut them into parts whose sizes differ by at most one.

    Args:
        num_clients: 1 or larger.
        seed: of the shuffle; it does not follow the run's seed.
    """

    uses_all_samples = True

    def __init__(self, *, num_clients: int = 24, seed: int = 0) -> None:
        check_whole("partition.num_clients", num_clients)
        self.num_clients = num_clients
        self.seed = seed

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        check_enough(len(y), self.num_clients, 1, "`partition.num_clients`")
        order = rng.stream(self.seed, "partition").permutation(len(y))
        least, more = divmod(len(y), self.num_clients)
        sizes = np.repeat([least + 1, least], [more, self.num_clients - more])
        owners = np.repeat(np.arange(self.num_clients), sizes)
        return cut_partition(order[np.lexsort((order, owners))], sizes)
