"""Clients as they are in the world, and groups of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, check_whole
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


@dataclass(eq=False, kw_only=True)
class GroupedNaturalPartitioner(Partitioner):
    """Deal the values of a column of the data set, writers say, to clients of given numbers of them.

    Values are dealt in random order: the first ``sizes[0]`` of them to client 0, and so on. With ``rest`` one more client has
    all that are left; without it nobody has them. Negative values mean that a sample belongs to nobody.

    Source: thesis, section 4.8.4 ("approximately 165 writers"), and the released code of Nemeth et al. (IEEE Access 2025, doi
    10.1109/ACCESS.2025.3546478): 167 writers of FEMNIST, nine clients with 3, 6, ..., 27 of them, and a tenth with the
    remaining 32.

    Args:
        label: the data set's column: a writer, a role, a hospital.
        sizes: how many values each client has, 1 or larger each.
        rest: whether one more client has the others.
        seed: of the order; it does not follow the run's seed.
    """

    uses_all_samples = True

    label: str = "writer"
    sizes: Sequence[int] = (3, 6, 9, 12, 15, 18, 21, 24, 27)
    rest: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for position, size in enumerate(self.sizes):
            check_whole(f"partition.sizes[{position}]", size)
        if not len(self.sizes):
            raise ValueError("Expected `partition.sizes` to have a number of values per client, but got none: name one.")

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        values = np.unique(y[y >= 0])
        cuts = np.cumsum(self.sizes)
        needed = int(cuts[-1]) + self.rest
        if len(values) < needed:
            raise InfeasiblePartitionError(
                f"Expected {needed} values or more of the column {self.label!r}, but got {len(values)}: lower "
                "`partition.sizes`."
            )
        *groups, left = np.split(rng.stream(self.seed, "partition").permutation(values), cuts)
        owned = [*groups, left] if self.rest else groups
        return Partition(tuple(np.flatnonzero(np.isin(y, group)) for group in owned))
