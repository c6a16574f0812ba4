"""What a data set is known by when a run goes on: its labels and splits, and a look at some of its inputs."""

import hashlib

import numpy as np

from fedfacet import rng, state
from fedfacet.data.dataset import Dataset

SAMPLES = 16
"""Inputs that are looked at; all of them would take minutes where they are files."""


def fingerprint(dataset: Dataset) -> str:
    """Return a sha256 over labels, splits, and shape, dtype and bytes of inputs at positions that a key draws, as text.

    Other files in the place of a data set's show where they are inverted, sorted or encoded anew, or where any label differs. A
    single changed image shows only if it is one of those drawn.
    """
    sha = hashlib.sha256()
    chosen = rng.stream(0, "fingerprint").choice(len(dataset.inputs), size=min(SAMPLES, len(dataset.inputs)), replace=False)
    sha.update(state.digest({"": dataset.inputs.fetch(np.sort(chosen))}).encode())
    nothing = np.empty(0, dtype=np.int64)
    for array in (dataset.y, dataset.a, dataset.train, dataset.test, nothing if dataset.val is None else dataset.val):
        sha.update(f"{array.shape}{array.dtype}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
