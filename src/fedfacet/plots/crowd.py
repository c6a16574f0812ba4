"""So many clients that none gets a bar of its own: neighbours are put together, so that a picture stays of one size."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_BARS = 2000
"""Of more clients, some are put together."""

_COLUMNS = 300


def neighbours(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where the columns of a picture begin and where the last one ends, about 300 of them.

    Args:
        sizes: of stretches of clients, 1 or larger; no column holds clients of two.

    Example:
        >>> neighbours([3, 2])
        array([0, 1, 2, 3, 4, 5])
        >>> len(neighbours([30_000]))
        301
    """
    edges = [0]
    for size in sizes:
        columns = min(size, max(1, round(_COLUMNS * size / sum(sizes))))
        edges.extend((edges[-1] + np.arange(1, columns + 1) * size // columns).tolist())
    return np.array(edges, dtype=np.int64)


def means(values_K: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of each column's clients; further axes stay."""
    sizes = np.diff(edges).reshape(-1, *(1,) * (values_K.ndim - 1))
    return np.add.reduceat(values_K, edges[:-1], axis=0, dtype=np.float64) / sizes


def quantiles(values_K: NDArray[np.float64], edges: NDArray[np.int64], at: Sequence[float]) -> NDArray[np.float64]:
    """Return quantiles of each column's clients, one row per entry of ``at``."""
    parts = np.split(values_K, edges[1:-1])
    return np.stack([np.quantile(part, at) for part in parts], axis=1)


def steps(values_C: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the heights of columns as what is drawn over their edges with ``step="post"``."""
    return np.append(values_C, values_C[-1:])
