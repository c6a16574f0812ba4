"""Who owns which sample, as files of a run folder: readable JSON, and arrays where clients are too many for it."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.heterogeneity import InteractionMatrices, InteractionMatrix
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.run_files import MOST_BYTES, read
from fedfacet.types import Partition

MANY = 10_000
"""Of more clients than this, no file of text lists every one."""

JSON, ARRAYS = "partition.json", "partition.npz"


def write_dealt(
    run_dir: Path,
    facts: Mapping[str, Any],
    partition: Partition,
    matrices: InteractionMatrices,
    validation: NDArray[np.int64],
    num_test: int,
    others: Mapping[str, Any],
) -> None:
    """Write ``partition.json``, and ``partition.npz`` where there are more than ``MANY`` clients.

    The arrays are ``positions``, the samples of one client after another, and ``sizes``, how many each client has; ``counts``
    of shape (K, Y, A); ``validation``.

    Args:
        run_dir: a folder that exists.
        facts: that come first: digest, number of clients, names.
        partition: who owns what.
        matrices: of the same clients.
        validation: positions of validation samples.
        num_test: how many samples test.
        others: further entries of the JSON, made when they are needed.
    """
    record: dict[str, Any] = dict(facts)
    if partition.num_clients > MANY:
        positions, sizes = partition.joined
        arrays = {"positions": positions, "sizes": sizes, "counts": matrices.counts_KYA, "validation": validation}
        with atomic_write(run_dir / ARRAYS) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: _small(array) for name, array in arrays.items()})
        record |= {"arrays": ARRAYS, "num_validation": len(validation), "num_test": num_test}
    else:
        record |= {
            "counts": [matrix.counts.astype(int).tolist() for matrix in matrices],
            "indices": [client.tolist() for client in partition.indices],
            "validation": validation.tolist(),
            "num_test": num_test,
        }
    with atomic_write(run_dir / JSON) as unfinished:
        unfinished.write_text(json.dumps(record | dict(others)) + "\n", encoding="utf-8")


def read_types(run_dir: Path) -> list[str]:
    """Return the type of each client of a run.

    Raises:
        CheckpointError: if the files are not what a run writes.
    """
    types = read(run_dir / JSON, _types_in)
    return read(run_dir / ARRAYS, _types_of_arrays, 4 * MOST_BYTES) if types is None else types


def _types_in(content: bytes) -> list[str] | None:
    record = json.loads(content)
    return None if "arrays" in record else [InteractionMatrix(counts).type for counts in record["counts"]]


def _types_of_arrays(content: bytes) -> list[str]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        counts = arrays["counts"]
    if counts.ndim != 3 or counts.dtype.kind not in "ui" or not counts.size:
        raise ValueError("its counts are none")
    return InteractionMatrices(counts).types


def _small(array: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers, 0 or larger, in as few bytes as hold them."""
    return array.astype(np.min_scalar_type(array.max(initial=0)))
