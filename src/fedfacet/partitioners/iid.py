"""Identically distributed clients."""

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition


class IIDPartitioner(Partitioner):
    """Shuffle all samples and cut them into parts whose sizes differ by at most one.

    Args:
        num_clients: 1 or larger.
        seed: of the shuffle; it does not follow the run's seed.

    Raises:
        ValueError: if ``num_clients`` is smaller than 1.
    """

    uses_all_samples = True

    def __init__(self, *, num_clients: int = 24, seed: int = 0) -> None:
        if num_clients < 1:
            raise ValueError(f"Expected `num_clients` to be 1 or larger, but got {num_clients}.")
        self.num_clients = num_clients
        self.seed = seed

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        if len(y) < self.num_clients:
            raise InfeasiblePartitionError(
                f"Expected at least one sample for each of {self.num_clients} clients, but got {len(y)} samples: lower "
                "`partition.num_clients`."
            )
        order = rng.stream(self.seed, "partition").permutation(len(y))
        return Partition(tuple(np.sort(part) for part in np.array_split(order, self.num_clients)))
