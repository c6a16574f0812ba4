"""The samples of a site's clients, read from the site's own files."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.reading import reading
from fedfacet.deploy.card import Card
from fedfacet.deploy.settings import Holding
from fedfacet.errors import DatasetCorruptError

Samples = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def read_samples(clients: Mapping[str, Holding], card: Card) -> dict[str, Samples]:
    """Read every client's arrays ``x``, ``y`` and ``a``; without attributes ``a`` is left out.

    Raises:
        DatasetCorruptError: if a file is missing or cannot be read, or holds other data than the card says.
    """
    found = {}
    for name, file in ((name, held.file) for name, held in clients.items()):
        remedy = "write it with `numpy.savez(file, x=x, y=y, a=a)`"
        with reading(file, "a client's arrays", remedy), np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
            a = arrays["a"] if "a" in arrays else np.zeros(len(y), np.int64)
        if (fault := card.misfit(x, y, a)) is not None:
            raise DatasetCorruptError(
                f"Expected {file} to fit the data card {card.name!r}, but {fault}: mend the file or the card."
            )
        found[name] = x, y, a
    return found


def digest_of_samples(samples: Samples) -> str:
    """Return by what a client's samples are known again when a run goes on."""
    sha = hashlib.sha256()
    for array in samples:
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
