"""Validation samples that no client holds and that are not the test set."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.data.dataset import Dataset
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition

MAX_PER_CELL, RESERVED_FRACTION = 300, 0.1


def partition_and_hold_out(dataset: Dataset, partitioner: Partitioner, *, seed: int = 0) -> tuple[Partition, NDArray[np.int64]]:
    """Deal the training samples to clients, and find validation samples that no client holds.

    An official validation set is taken as it is. Otherwise validation takes equally many samples of every (class, attribute)
    cell, at most 300: from the training samples that the partitioner leaves over, or, where it deals out all samples, a tenth
    of the smallest cell from every cell before the clients get theirs.

    Positions are those of the data set, sorted; there are no validation samples where some cell has nothing left. ``seed`` is
    of the validation draw, and does not follow the run's seed.

    Raises:
        InfeasiblePartitionError: if the partitioner finds too few samples, or leaves a client without any.
    """
    pool = dataset.train
    val = dataset.val
    if val is None and partitioner.uses_all_samples:
        smallest = int(_cell_sizes(dataset, pool).min())
        val = _draw(dataset, pool, min(MAX_PER_CELL, int(RESERVED_FRACTION * smallest)), seed)
        pool = np.setdiff1d(pool, val, assume_unique=True)
    labels = _labels(dataset, partitioner.label)
    dealt = partitioner.partition(labels[pool].astype(np.int64, copy=False), dataset.a[pool])
    if empty := [client_id for client_id, client in enumerate(dealt.indices) if not len(client)]:
        raise InfeasiblePartitionError(
            f"Expected every client to hold at least one sample, but {len(empty)} of {len(dealt.indices)} would hold none, "
            f"client {empty[0]} the first of them: choose another partition."
        )
    partition = Partition(tuple(pool[client] for client in dealt.indices))
    if val is None:
        rest = np.setdiff1d(pool, np.concatenate(partition.indices), assume_unique=True)
        val = _draw(dataset, rest, min(MAX_PER_CELL, int(_cell_sizes(dataset, rest).min())), seed)
    return partition, val


def _labels(dataset: Dataset, name: str) -> NDArray[np.integer[Any]]:
    """Return the labels called ``name``, shape (N,): the classes for ``"y"``, the attribute values for ``"a"``."""
    known = {"y": dataset.y, "a": dataset.a}
    if name not in known and name not in dataset.columns:
        raise InfeasiblePartitionError(
            f"Expected `partition.label` to be one of {', '.join([*known, *dataset.columns])}, which this data set has, but "
            f"got {name!r}: choose one of them or another `dataset`."
        )
    return known[name] if name in known else dataset.columns[name]


def _cell_sizes(dataset: Dataset, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    cells = dataset.y[indices] * dataset.num_attributes + dataset.a[indices]
    return np.bincount(cells, minlength=dataset.num_classes * dataset.num_attributes)


def _draw(dataset: Dataset, indices: NDArray[np.int64], per_cell: int, seed: int) -> NDArray[np.int64]:
    cells = dataset.y[indices] * dataset.num_attributes + dataset.a[indices]
    drawn = [
        rng.stream(seed, "validation", cell).permutation(indices[cells == cell])[:per_cell]
        for cell in range(dataset.num_classes * dataset.num_attributes)
    ]
    return np.sort(np.concatenate(drawn))
