"""What a data set is known by when a run goes on: its labels and splits, and a look at some of its inputs."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.data.dataset import Dataset

SAMPLES = 16
"""Inputs that are looked at, unless all are; those of a large data set take minutes where they are files."""

_BLOCK = 1024
"""Inputs that are fetched at a time."""


def fingerprint(dataset: Dataset, *, whole: bool = False) -> str:
    """Return a sha256 over labels, splits, and shape, dtype and bytes of inputs at positions that a key draws, as text.

    Other files in the place of a data set's show where they are inverted, sorted or encoded anew, or where any label differs. A
    single changed image shows only if it is one of those drawn, or if the ``whole`` is looked at.
    """
    sha, number = hashlib.sha256(), len(dataset.inputs)
    drawn = np.sort(rng.stream(0, "fingerprint").choice(number, size=min(SAMPLES, number), replace=False))
    chosen = np.arange(number) if whole else drawn
    for start in range(0, len(chosen), _BLOCK):
        sha.update(state.digest({"": dataset.inputs.fetch(chosen[start : start + _BLOCK])}).encode())
    nothing = np.empty(0, dtype=np.int64)
    known: list[NDArray[Any]] = [
        dataset.y,
        dataset.a,
        dataset.train,
        dataset.test,
        nothing if dataset.val is None else dataset.val,
    ]
    for array in known if dataset.targets is None else [*known, dataset.targets]:
        sha.update(f"{array.shape}{array.dtype}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
