"""PneumoniaMNIST."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.download import download as fetch_file
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.reading import check_archive, reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

FILE = "pneumoniamnist.npz"
PUBLISHED = "md5:28209eda62fecd6e6a2d98b1501bb15f"
"""As MedMNIST 3.0.2 gives it for the file at ``URL``."""

URL = "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1"
_SPLITS = ("train", "val", "test")
_SIDE = 28


@dataclass(eq=False, kw_only=True)
class PneumoniaMNIST(DatasetSource):
    """Chest X-rays of children, y = pneumonia, no attribute, 1 x 28 x 28 pixels, in the official splits of MedMNIST v2.

    4,708 images train, 524 validate and 624 test; 26, 26 and 38 % of them are normal (class 0).

    Source: Yang et al., MedMNIST v2, Scientific Data 2023, after Kermany et al., Cell 2018; CC BY 4.0.

    Args:
        root: folder that holds ``pneumoniamnist.npz``.
        download: fetch the file (4.2 MB) into ``root`` where it is missing.
        url: of the file.
    """

    root: str
    download: bool = False
    url: str = URL

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in MedMNIST's layout; see ``DatasetSource.generate``."""
        arrays: dict[str, Any] = {}
        for split, count in zip(_SPLITS, (80, 40, 40), strict=True):
            labels = np.arange(count) % 2
            arrays[f"{split}_images"] = noise(f"pneumonia-{split}", labels, (_SIDE, _SIDE))
            arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_whole(located(self.root) / FILE, content.getvalue())

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the images; see ``DatasetSource.load``."""
        file = located(self.root) / FILE
        if self.download and not file.is_file():
            fetch_file(self.url, file, published=PUBLISHED if self.url == URL else None)
        arrays = _read(file)
        y = np.concatenate([arrays[f"{split}_labels"][:, 0] for split in _SPLITS]).astype(np.int64)
        pixels = np.concatenate([arrays[f"{split}_images"] for split in _SPLITS])[:, None]
        ends = np.cumsum([len(arrays[f"{split}_labels"]) for split in _SPLITS])
        train, val, test = np.split(np.arange(len(y)), ends[:-1])
        images, names = InMemoryInputs(torch.from_numpy(pixels)), ("normal", "pneumonia")
        # Mean and deviation as in MedMNIST's own scripts.
        return Dataset(images, y, np.zeros_like(y), train, test, val, names, mean=(0.5,), std=(0.5,))


def _read(file: Path) -> dict[str, NDArray[np.uint8]]:
    if not file.is_file():
        raise DatasetNotFoundError(
            f"Expected PneumoniaMNIST at {file}, but there is no such file: fetch it (4.2 MB) with dataset.download=true, name "
            "the folder that holds it with dataset.root=DIR, point FEDFACET_DATA at a folder that holds pneumoniamnist/, or "
            "use `experiment=digits_gsc` instead (with method=fedld for FedLD), which needs no download."
        )
    with reading(file, f"images and labels of {', '.join(_SPLITS)}", "delete it and fetch it again"):
        check_archive(file)
        with np.load(file, allow_pickle=False) as opened:
            arrays = {name: opened[name] for split in _SPLITS for name in (f"{split}_images", f"{split}_labels")}
        for split in _SPLITS:
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            count, dtypes = len(labels), {images.dtype, labels.dtype}
            whole = images.shape == (count, _SIDE, _SIDE) and labels.shape == (count, 1) and dtypes == {np.dtype(np.uint8)}
            if not whole or set(labels.flat) != {0, 1}:
                raise DatasetCorruptError(
                    f"Expected {split} images of shape (N, {_SIDE}, {_SIDE}) and labels 0 and 1 of shape (N, 1), all bytes, in "
                    f"{file}, but got {images.shape} of {images.dtype} and {labels.shape} of {labels.dtype}: it is another "
                    "data set of MedMNIST, so delete it and fetch this one."
                )
    return arrays
