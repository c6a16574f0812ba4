"""Clients with given interaction matrices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition


class InteractionMatrixPartitioner(Partitioner):
    """Give every client exactly the number of samples of each (class, attribute) cell that its matrix asks for.

    The federations of FedDiverse (arXiv:2504.11216), table 6 (thesis, table 13) are yamls of this class. Each cell's samples
    are permuted once and dealt to the clients in order; samples that nobody asks for stay out.

    Args:
        clients: groups of equal clients in the order of their ids, each a mapping with ``count`` (how many clients) and
            ``matrix`` (rows are classes, columns attribute values).
        scale: factor on every matrix; cells are rounded by largest remainder, so that a client keeps ``round(scale * n_k)``
            samples.
        tolerance: the largest change of a client's heterogeneity triplet that rounding may cause, per measure.
        seed: of the permutations; 0 or larger. It does not follow the run's seed.

    Raises:
        ValueError: if the matrices are malformed or of different shapes, ``scale`` is not positive, or rounding would move a
            client's triplet by more than ``tolerance``.
    """

    def __init__(
        self, clients: Sequence[Mapping[str, Any]], *, scale: float = 1.0, tolerance: float = 0.02, seed: int = 0
    ) -> None:
        if not 0 < scale < math.inf:
            raise ValueError(f"Expected `scale` to be larger than 0 and finite, but got {scale}.")
        if tolerance < 0:
            raise ValueError(f"Expected `tolerance` to be 0 or larger, but got {tolerance}.")
        if not clients:
            raise ValueError("Expected `clients` to name at least one group of clients, but got none.")
        self.seed = seed
        for group in clients:
            if set(group) != {"count", "matrix"} or not isinstance(group["count"], int) or group["count"] < 1:
                raise ValueError(
                    f"Expected every entry of `clients` to have a positive `count` and a `matrix`, but got {dict(group)}."
                )
        full = [InteractionMatrix(group["matrix"]) for group in clients]
        if len(shapes := {matrix.counts.shape for matrix in full}) > 1:
            raise ValueError(f"Expected all matrices to have one shape (classes, attributes), but got {sorted(shapes)}.")
        self.matrices: list[InteractionMatrix] = []
        for group, before in zip(clients, full, strict=True):
            after = _scaled(before, scale)
            if (moved := _moved(before, after)) > tolerance:
                raise ValueError(
                    f"Expected `scale={scale}` to keep every client's heterogeneity triplet within {tolerance}, but the matrix "
                    f"{before.counts.astype(int).tolist()} would become {after.counts.astype(int).tolist()} and move by "
                    f"{moved:.3f}: use {_fitting_scale(full, scale, tolerance)}."
                )
            self.matrices += [after] * group["count"]

    @property
    def demand(self) -> NDArray[np.int64]:
        """The samples that all clients together ask for, per cell, shape (Y, A)."""
        total: NDArray[np.float64] = np.sum([matrix.counts for matrix in self.matrices], axis=0)
        return total.astype(np.int64)

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        num_classes, num_attributes = self.demand.shape
        if len(y) and (y.max() >= num_classes or a.max() >= num_attributes):
            raise InfeasiblePartitionError(
                f"Expected samples of {num_classes} classes and {num_attributes} attribute values, as in the partition's "
                f"matrices, but the data set has {y.max() + 1} and {a.max() + 1}: choose a partition of that shape."
            )
        parts: list[list[NDArray[np.int64]]] = [[] for _ in self.matrices]
        for label in range(num_classes):
            for attribute in range(num_attributes):
                cell = np.flatnonzero((y == label) & (a == attribute))
                wanted = int(self.demand[label, attribute])
                if wanted > len(cell):
                    raise InfeasiblePartitionError(
                        f"Expected at least {wanted} samples in the cell class {label}, attribute {attribute}, but the data "
                        f"set has {len(cell)}: lower `partition.scale` or use a larger data set."
                    )
                cell = rng.stream(self.seed, "partition", label, attribute).permutation(cell)
                counts = [int(matrix.counts[label, attribute]) for matrix in self.matrices]
                for client, samples in enumerate(np.split(cell[:wanted], np.cumsum(counts)[:-1])):
                    parts[client].append(samples)
        return Partition(tuple(np.sort(np.concatenate(client)) for client in parts))


def _scaled(full: InteractionMatrix, scale: float) -> InteractionMatrix:
    exact = full.counts * scale
    # 1e-9 so that 0.2 * 90 = 18.000000000000004 counts as integral.
    floor = np.floor(exact + 1e-9)
    missing = round(float(exact.sum())) - int(floor.sum())
    order = np.argsort(-(exact - floor), axis=None, kind="stable")
    floor.flat[order[:missing]] += 1
    return InteractionMatrix(floor)


def _moved(before: InteractionMatrix, after: InteractionMatrix) -> float:
    return max(abs(now - was) for now, was in zip(after.triplet, before.triplet, strict=True))


def _fitting_scale(full: Sequence[InteractionMatrix], scale: float, tolerance: float) -> str:
    for percent in range(int(scale * 100) + 1, 100):
        if all(_moved(matrix, _scaled(matrix, percent / 100)) <= tolerance for matrix in full):
            return f"`partition.scale={percent / 100}` or another scale at which the counts stay whole"
    return "`partition.scale=1`"
