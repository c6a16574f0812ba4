"""Clients with given interaction matrices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_whole, check_within
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition

_MOST = 10**9  # samples; no data set has more, and what asks for more is refused before anything is made for it


class InteractionMatrixPartitioner(Partitioner):
    """Give every client exactly the number of samples of each (class, attribute) cell that its matrix asks for.

    The federations of FedDiverse (arXiv:2504.11216), table 6 (thesis, table 13) are yamls of this class. Each cell's samples
    are permuted once and dealt to the clients in order; samples that nobody asks for stay out.

    Args:
        clients: groups of equal clients in the order of their ids, each a mapping with ``count`` (how many clients) and
            ``matrix`` (rows are classes, columns attribute values, entries whole numbers).
        scale: factor on every matrix, in (0, 1e9]; cells are rounded by largest remainder, so that a client keeps
            ``round(scale * n_k)`` samples.
        tolerance: the largest change of a client's heterogeneity triplet that rounding may cause, per measure, in [0, 1].
        seed: of the permutations; 0 or larger. It does not follow the run's seed.

    Raises:
        ValueError: if an argument is out of range, matrices have different shapes, all clients together ask for more than
            10^9 samples or one for none, or rounding would move a client's triplet by more than ``tolerance``.
    """

    def __init__(
        self, clients: Sequence[Mapping[str, Any]], *, scale: float = 1.0, tolerance: float = 0.02, seed: int = 0
    ) -> None:
        check_within("partition.scale", scale, "(0, 1e9]")
        check_within("partition.tolerance", tolerance, "[0, 1]")
        if not clients:
            raise ValueError("Expected `partition.clients` to name at least one group of clients, but got none.")
        self.seed = seed
        full = [_read(group) for group in clients]
        if len(shapes := {matrix.counts.shape for _, matrix in full}) > 1:
            raise ValueError(f"Expected all matrices to have one shape (classes, attributes), but got {sorted(shapes)}.")
        if any(count > _MOST for count, _ in full) or sum(count * scale * matrix.total for count, matrix in full) > _MOST:
            raise ValueError(
                f"Expected all clients together to ask for at most {_MOST:,} samples, but they ask for more: lower "
                "`partition.scale` or a `count` of `partition.clients`."
            )
        self._groups = [(count, _scaled(matrix, scale)) for count, matrix in full]
        for (_, before), (_, after) in zip(full, self._groups, strict=True):
            if _keeps(before, after, tolerance):
                continue
            raise ValueError(
                f"Expected `partition.scale={scale}` to keep every client's heterogeneity triplet within {tolerance}, and at "
                f"least one sample, but the matrix {before.counts.astype(int).tolist()} would become "
                f"{after.counts.astype(int).tolist()} and move by {_moved(before, after):.3f}: use "
                f"{_fitting_scale([matrix for _, matrix in full], scale, tolerance)}."
            )

    @property
    def matrices(self) -> list[InteractionMatrix]:
        """The interaction matrix of each client."""
        return [matrix for count, matrix in self._groups for _ in range(count)]

    @property
    def demand(self) -> NDArray[np.int64]:
        """The samples that all clients together ask for, per cell, shape (Y, A)."""
        total: NDArray[np.float64] = np.sum([count * matrix.counts for count, matrix in self._groups], axis=0)
        return total.astype(np.int64)

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        demand = self.demand
        num_classes, num_attributes = demand.shape
        if len(y) and (y.max() >= num_classes or a.max() >= num_attributes):
            raise InfeasiblePartitionError(
                f"Expected samples of {num_classes} classes and {num_attributes} attribute values, as in the partition's "
                f"matrices, but the data set has {y.max() + 1} and {a.max() + 1}: choose a partition of that shape."
            )
        cells = {cell: np.flatnonzero((y == cell[0]) & (a == cell[1])) for cell in np.ndindex(num_classes, num_attributes)}
        for (label, attribute), cell in cells.items():
            if demand[label, attribute] > len(cell):
                remedy = "lower `partition.scale` or use a larger data set"
                raise InfeasiblePartitionError(
                    f"Expected at least {demand[label, attribute]} samples in the cell class {label}, attribute {attribute}, "
                    f"but the data set has {len(cell) or 'none'}: "
                    f"{remedy if len(cell) else 'choose a partition that needs none there, such as partition=dirichlet'}."
                )
        matrices = self.matrices  # no more than there are samples, as checked above
        parts: list[list[NDArray[np.int64]]] = [[] for _ in matrices]
        for (label, attribute), cell in cells.items():
            cell = rng.stream(self.seed, "partition", label, attribute).permutation(cell)
            ends = np.cumsum([int(matrix.counts[label, attribute]) for matrix in matrices])
            for client, samples in enumerate(np.split(cell[: ends[-1]], ends[:-1])):
                parts[client].append(samples)
        return Partition(tuple(np.sort(np.concatenate(client)) for client in parts))


def _read(group: object) -> tuple[int, InteractionMatrix]:
    if not isinstance(group, Mapping) or set(group) != {"count", "matrix"}:
        raise ValueError(f"Expected every entry of `partition.clients` to have a `count` and a `matrix`, but got {group}.")
    check_whole("count", count := group["count"])
    try:
        counts = np.array(group["matrix"], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # numpy's, for rows of different lengths and for what is no number
        counts = np.empty(0)
    if counts.ndim != 2 or not counts.any() or not ((counts >= 0) & (counts <= _MOST) & (counts % 1 == 0)).all():
        raise ValueError(
            "Expected every `matrix` of `partition.clients` to have rows (classes) of equally many whole numbers (attribute "
            f"values) from 0 to {_MOST:,}, at least one of them larger than 0, but got {group['matrix']}."
        )
    return count, InteractionMatrix(counts)


def _scaled(full: InteractionMatrix, scale: float) -> InteractionMatrix:
    exact = full.counts * scale
    # 1e-9 so that 0.2 * 90 = 18.000000000000004 counts as integral.
    floor = np.floor(exact + 1e-9)
    missing = round(float(exact.sum())) - int(floor.sum())
    order = np.argsort(-(exact - floor), axis=None, kind="stable")
    floor.flat[order[:missing]] += 1
    return InteractionMatrix(floor)


def _keeps(before: InteractionMatrix, after: InteractionMatrix, tolerance: float) -> bool:
    return after.total > 0 and _moved(before, after) <= tolerance


def _moved(before: InteractionMatrix, after: InteractionMatrix) -> float:
    return max(abs(now - was) for now, was in zip(after.triplet, before.triplet, strict=True))


def _fitting_scale(full: Sequence[InteractionMatrix], scale: float, tolerance: float) -> str:
    for percent in range(int(scale * 100) + 1, 100):
        if all(_keeps(matrix, _scaled(matrix, percent / 100), tolerance) for matrix in full):
            return f"`partition.scale={percent / 100}` or another scale at which the counts stay whole"
    return "`partition.scale=1`"
