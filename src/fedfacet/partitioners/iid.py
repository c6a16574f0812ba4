"""Identically distributed clients."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole
from fedfacet.partitioners.base import Partitioner, check_enough
from fedfacet.types import Partition, cut_partition


@dataclass(eq=False, kw_only=True)
class IIDPartitioner(Partitioner):
    """Shuffle all samples and cut them into parts whose sizes differ by at most one.

    Args:
        num_clients: 1 or larger.
        seed: of the shuffle; it does not follow the run's seed.
    """

    uses_all_samples = True

    num_clients: Annotated[int, Whole()] = 24
    seed: int = 0

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        check_enough(len(y), self.num_clients, 1, "`partition.num_clients`")
        order = rng.stream(self.seed, "partition").permutation(len(y))
        least, more = divmod(len(y), self.num_clients)
        sizes = np.repeat([least + 1, least], [more, self.num_clients - more])
        owners = np.repeat(np.arange(self.num_clients), sizes)
        return cut_partition(order[np.lexsort((order, owners))], sizes)
