"""Clients as they are in the world."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Whole
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition


@dataclass(eq=False, kw_only=True)
class NaturalPartitioner(Partitioner):
    """Make a client of every value of a column of the data set: a hospital, a role, a writer.

    Clients are numbered in the order of the values. Negative values mean that a sample belongs to nobody.

    Args:
        label: the data set's column: metadata such as a client, a role or a writer, or ``"y"`` for a client per class.
        min_samples: that a client must have to take part, 1 or larger; samples of smaller ones are left out.
    """

    uses_all_samples = True

    label: str = "y"
    min_samples: Annotated[int, Whole()] = 1

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        values, sizes = np.unique(y, return_counts=True)
        clients = values[(values >= 0) & (sizes >= self.min_samples)]
        if not len(clients):
            raise InfeasiblePartitionError(
                f"Expected a value of the column {self.label!r} with at least {self.min_samples} samples, but got {len(y)} "
                f"samples of {len(values)} values: lower `partition.min_samples`."
            )
        order = np.argsort(y, kind="stable")
        starts = np.searchsorted(y, clients, side="left", sorter=order)
        ends = np.searchsorted(y, clients, side="right", sorter=order)
        return Partition(tuple(order[start:end] for start, end in zip(starts, ends, strict=True)))
