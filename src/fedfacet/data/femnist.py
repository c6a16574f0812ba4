"""FEMNIST in LEAF's layout."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise
from fedfacet.data.leaf import read_users, write_users
from fedfacet.data.source import DatasetSource, located

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""LEAF's 62 classes."""

PARTS = ("train", "test")
_SIDE = 28


@dataclass(eq=False, kw_only=True)
class FEMNIST(DatasetSource):
    """Handwritten digits and letters of many writers, 62 classes, no attribute, 1 x 28 x 28 pixels, dark on light.

    The splits are those of LEAF's files. The thesis makes them with ``./preprocess.sh -s niid --sf 0.2 -k 300 -t user``: the
    test set is then of other writers. Writers are numbered by their names, those who train first. With
    ``partition=grouped_natural`` clients are groups of writers, with ``partition=natural partition.label=writer`` each is one.

    LEAF keeps grey values as fractions; here they are rounded to bytes, which is what they were before.

    Source: LEAF (Caldas et al., arXiv:1812.01097) after NIST Special Database 19 and EMNIST (Cohen et al., arXiv:1702.05373);
    mean and deviation as in the thesis' released code.

    Args:
        root: folder that holds ``data/train/*.json`` and ``data/test/*.json`` as LEAF writes them.
    """

    root: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root) / "data"

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in LEAF's layout, twelve writers who train and two who test; see ``DatasetSource.generate``."""
        for part, writers in zip(PARTS, (12, 2), strict=True):
            data = {}
            for writer in range(writers):
                labels = np.arange(2 * len(CHARACTERS)) % len(CHARACTERS)
                pixels = noise(f"femnist-{part}-{writer}", labels, (_SIDE * _SIDE,))
                data[f"{part}_{writer:02d}"] = {"x": np.round(pixels / 255, 4).tolist(), "y": labels.tolist()}
            write_users(self.folder / part / "all_data_0.json", data)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the files; see ``DatasetSource.load``."""
        images, labels, writers, sizes, names = [], [], [], [], list[str]()
        for part in PARTS:
            known = self._part(part)
            sizes.append(sum(len(y) for _, y in known.values()))
            for name, (x, y) in sorted(known.items()):
                if name not in names:
                    names.append(name)
                images.append(x)
                labels.append(y)
                writers.append(np.full(len(y), names.index(name)))
        y = np.concatenate(labels)
        train, test = np.split(np.arange(len(y)), [sizes[0]])
        pixels = torch.from_numpy(np.concatenate(images).reshape(-1, 1, _SIDE, _SIDE))
        return Dataset(
            InMemoryInputs(pixels),
            y,
            np.zeros_like(y),
            train,
            test,
            None,
            tuple(CHARACTERS),
            mean=(0.9652,),
            std=(0.1559,),
            columns={"writer": np.concatenate(writers)},
        )

    def _part(self, part: str) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Return every writer's images, shape (n, 784), and classes, shape (n,)."""
        missing = (
            f"Expected LEAF's json files in {self.folder / part}, but there are none: make them with LEAF "
            "(github.com/TalwalkarLab/leaf, data/femnist, `./preprocess.sh -s niid --sf 0.2 -k 300 -t user`) and name the "
            "folder that holds its `data` with dataset.root=DIR, point FEDFACET_DATA at a folder that holds femnist/, or "
            "use `experiment=mnist_writers_submodels dataset.download=true` instead, whose clients are writers too."
        )
        return read_users(self.folder / part, _images_of, missing=missing, user="writer")


def _images_of(rows: Any, labels: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x, y = np.asarray(rows), np.asarray(labels)
    if x.ndim != 2 or x.shape != (len(y), _SIDE * _SIDE) or len(y) == 0:
        raise ValueError(f"the images of a writer have the shape {x.shape} for {len(y)} classes")
    if x.dtype.kind not in "iuf" or not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise ValueError("a grey value is not a number between 0 and 1")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(CHARACTERS):
        raise ValueError(f"a class is not a whole number from 0 to {len(CHARACTERS) - 1}")
    return np.rint(255 * x.astype(np.float64)).astype(np.uint8), y.astype(np.int64)
