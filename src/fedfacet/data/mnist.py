"""MNIST, with the writers that QMNIST has found out."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import MNIST as TORCHVISION_MNIST

from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.download import download as fetch_file
from fedfacet.data.generated import noise
from fedfacet.data.mnist_files import IMAGES, LABELS, PARTS, IdxFiles, images_and_digits, mnist_files
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError

QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
PUBLISHED = {
    "qmnist-train-labels-idx2-int": "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
    "qmnist-test-labels-idx2-int": "md5:5b5b05890a5e13444e108efe57b788aa",
}
"""As torchvision gives them for the files at ``QMNIST``."""

SERIES = (0, 4)
"""NIST's hsf_0, census staff, and hsf_4, high-school students."""

_COLUMNS, _INT = 8, 12
_DIGIT, _SERIES, _WRITER = 0, 1, 2


@dataclass(eq=False, kw_only=True)
class MNIST(DatasetSource):
    """Handwritten digits, y = digit, attribute = who wrote: staff of the census office, or high-school students.

    60,000 images of 539 writers train, the official 10,000 test. ``partition=natural partition.label=writer`` makes a client of
    every writer; ``partition=grouped_natural`` of groups of them. A writer has 19 to 131 training images. The test images are
    by 297 other people, so whatever tells members from test images may tell writers apart (``attack.py`` with
    ``members.others=test``).

    Source: LeCun, Cortes and Burges, CC BY-SA 3.0; writers and series from QMNIST (Yadav and Bottou, arXiv:1905.10498), whose
    training rows and first 10,000 test rows are MNIST's images one by one.

    Args:
        root: folder that holds ``MNIST/raw`` and ``QMNIST/raw`` in torchvision's layout, files compressed or not.
        download: fetch what is missing (14 MB) into ``root``.
    """

    root: str
    download: bool = False

    def __post_init__(self) -> None:
        root = located(self.root)
        self._files = mnist_files(root)
        self._labels = IdxFiles(
            "QMNIST",
            root / "QMNIST" / "raw",
            "fetch it (1 MB) with dataset.download=true, or point FEDFACET_DATA at a folder that holds mnist/QMNIST/raw",
        )

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the real layout, eight writers; see ``DatasetSource.generate``."""
        for part, name, count in zip(PARTS, PUBLISHED, (480, 200), strict=True):
            numbers = np.arange(count)
            digits = numbers % 10
            self._files.write(f"{part}-{IMAGES}", noise(f"mnist-{part}", digits, (28, 28)))
            self._files.write(f"{part}-{LABELS}", digits.astype(np.uint8))
            rows = np.zeros((count, _COLUMNS), dtype=">i4")
            writers = numbers // 10 % 8
            rows[:, _DIGIT], rows[:, _WRITER], rows[:, _SERIES] = digits, writers, np.array(SERIES)[writers % 2]
            self._labels.write(name, rows, _INT)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read images, digits and writers; see ``DatasetSource.load``."""
        if self.download:
            self._fetch()
        images, digits, rows = [], [], []
        for part, name in zip(PARTS, PUBLISHED, strict=True):
            pixels, known = images_and_digits(self._files, part)
            images.append(pixels)
            digits.append(known)
            rows.append(self._rows(name, known))
        y = np.concatenate(digits).astype(np.int64)
        described = np.concatenate(rows).astype(np.int64)
        train, test = np.split(np.arange(len(y)), [len(digits[0])])
        return Dataset(
            InMemoryInputs(torch.from_numpy(np.concatenate(images)[:, None])),
            y,
            (described[:, _SERIES] == SERIES[1]).astype(np.int64),
            train,
            test,
            None,
            tuple(map(str, range(10))),
            ("staff", "students"),
            mean=(0.1307,),
            std=(0.3081,),
            columns={"writer": described[:, _WRITER]},
        )

    def _fetch(self) -> None:
        if not all(self._files.find(f"{part}-{kind}") for part in PARTS for kind in (IMAGES, LABELS)):
            TORCHVISION_MNIST(str(located(self.root)), train=True, download=True)
        for name, published in PUBLISHED.items():
            if self._labels.find(name) is None:
                fetch_file(f"{QMNIST}/{name}.gz", self._labels.folder / f"{name}.gz", published=published)

    def _rows(self, name: str, digits: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return QMNIST's rows for these digits, shape (N, 8)."""
        rows: NDArray[np.int32] = self._labels.read(name, (_COLUMNS,), ">i4")[: len(digits)]
        same = len(rows) == len(digits) and np.array_equal(rows[:, _DIGIT], digits)
        if not same or not np.isin(rows[:, _SERIES], SERIES).all():
            raise DatasetCorruptError(
                f"Expected {name} in {self._labels.folder} to have MNIST's digits, row by row, and the series 0 and 4, but it "
                "has not: delete it and fetch it again."
            )
        return rows
