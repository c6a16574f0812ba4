"""What every client holds out of its own samples."""

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.types import Partition


def hold_out_locally(
    y: NDArray[np.int64], partition: Partition, share: float, *, seed: int = 0
) -> tuple[Partition, tuple[NDArray[np.int64], ...]]:
    """Set a share of every client's samples aside for measuring personal models; nobody trains on it.

    A client with n_k samples holds out ``share * n_k`` of them, rounded, but never all. Each class gives the whole part of
    ``share`` times its samples; the classes with the largest remainders give one more each until there are enough, and a draw
    decides between equal remainders. (scikit-learn's stratified split refuses classes of one sample.)

    ``y`` has the classes, shape (N,), and ``share`` is in [0, 1). The ``seed`` of the draw does not follow the run's seed. The
    results are the partition of what is left for training, and per client the sorted positions of what is held out.

    Raises:
        ValueError: if ``share`` is out of range.

    Example:
        >>> left, held_out = hold_out_locally(np.array([0, 0, 0, 0, 1, 1]), Partition((np.arange(6),)), 0.5)
        >>> np.array([0, 0, 0, 0, 1, 1])[held_out[0]]
        array([0, 0, 1])
    """
    check_within("partition.local_holdout", share, "[0, 1)")
    if not share:
        return partition, tuple(client[:0] for client in partition.indices)
    held_out = tuple(
        _drawn(y, client, share, rng.stream(seed, "local_holdout", k)) for k, client in enumerate(partition.indices)
    )
    left = (np.setdiff1d(client, held, assume_unique=True) for client, held in zip(partition.indices, held_out, strict=True))
    return Partition(tuple(left)), held_out


def _drawn(y: NDArray[np.int64], client: NDArray[np.int64], share: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return the sorted positions that one client holds out."""
    classes, of_class, sizes = np.unique(y[client], return_inverse=True, return_counts=True)
    wanted = min(int(share * len(client) + 0.5), len(client) - 1)
    # A part of a hundred-millionth more, so that 0.29 * 100 is 29.
    counts = np.floor(min(share, 1 - 1e-6) * sizes + 1e-8).astype(np.int64)
    order = draw.permutation(len(classes))
    by_remainder = order[np.argsort((counts - share * sizes)[order], kind="stable")]
    counts[by_remainder[: max(0, wanted - counts.sum())]] += 1
    chosen = [draw.permutation(client[of_class == position])[:count] for position, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))
