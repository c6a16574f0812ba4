"""MNIST, in grey with the writers that QMNIST has found out, and in two colours.

Its files have headers that say their sizes, and bytes; they lie in torchvision's layout, compressed or not.
"""

import gzip
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import MNIST as TORCHVISION_MNIST

from fedfacet import rng
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.digits import COLOURS, colour
from fedfacet.data.download import download as fetch_file
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.reading import reading, unpacked
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
PUBLISHED = {
    "qmnist-train-labels-idx2-int": "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
    "qmnist-test-labels-idx2-int": "md5:5b5b05890a5e13444e108efe57b788aa",
}
"""As torchvision gives them for the files at ``QMNIST``."""

SERIES = (0, 4)
"""NIST's hsf_0, census staff, and hsf_4, high-school students."""

PARTS = ("train", "t10k")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_COLUMNS, _INT = 8, 12
_DIGIT, _SERIES, _WRITER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class IdxFiles:
    """Files in a folder; ``name`` says of what, and ``how_to_get`` how to get them."""

    name: str
    folder: Path
    how_to_get: str

    def find(self, name: str) -> Path | None:
        """Return where a file is, compressed or not."""
        return next((file for file in (self.folder / name, self.folder / f"{name}.gz") if file.is_file()), None)

    def read(self, name: str, row: tuple[int, ...], dtype: str = "u1") -> NDArray[Any]:
        """Return what a file holds, rows of a shape.

        Raises:
            DatasetNotFoundError: if there is no such file.
            DatasetCorruptError: if it does not hold as many rows as its header says, or none.
        """
        file = self.find(name)
        if file is None:
            raise DatasetNotFoundError(
                f"Expected {self.name}'s {name}(.gz) in {self.folder}, but it is not there: {self.how_to_get}."
            )
        with reading(file, f"a whole file of {self.name}", "delete it and fetch it again"):
            content = unpacked(file)
        count, header = int.from_bytes(content[4:8], "big"), 4 * (2 + len(row))
        expected = header + count * int(np.prod(row)) * np.dtype(dtype).itemsize
        if len(content) != expected or count == 0:
            raise DatasetCorruptError(
                f"Expected {file} to hold {expected} bytes, as its header says, but it holds {len(content)}: delete it and "
                "fetch it again."
            )
        return np.frombuffer(content, dtype, offset=header).reshape(-1, *row)

    def write(self, name: str, values: NDArray[Any], kind: int = 8) -> None:
        """Write such a file, compressed; ``kind`` is the number of the type of its values."""
        header = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes()
        write_whole(self.folder / f"{name}.gz", gzip.compress(header + values.tobytes(), mtime=0))


@dataclass(eq=False)
class _Mnist(DatasetSource):
    """What both data sets share.

    Args:
        root: folder that holds ``MNIST/raw`` in torchvision's layout, files compressed or not.
        download: fetch what is missing into ``root``.
    """

    root: str
    _: KW_ONLY
    download: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._files = IdxFiles(
            "MNIST",
            located(self.root) / "MNIST" / "raw",
            "fetch MNIST (12 MB) with dataset.download=true, point FEDFACET_DATA at a folder that holds mnist/MNIST/raw, or "
            "use `experiment=digits_gsc` instead, which needs no download",
        )

    def _write(self, part: str, count: int) -> NDArray[np.int64]:
        """Write noise in MNIST's layout, and return the digits."""
        digits = np.arange(count) % 10
        self._files.write(f"{part}-{IMAGES}", noise(f"mnist-{part}", digits, (28, 28)))
        self._files.write(f"{part}-{LABELS}", digits.astype(np.uint8))
        return digits

    def _fetch(self) -> None:
        if not all(self._files.find(f"{part}-{kind}") for part in PARTS for kind in (IMAGES, LABELS)):
            TORCHVISION_MNIST(str(located(self.root)), train=True, download=True)

    def _read(self, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return a part's images, shape (N, 28, 28), and their digits, shape (N,)."""
        images, digits = self._files.read(f"{part}-{IMAGES}", (28, 28)), self._files.read(f"{part}-{LABELS}", ())
        if len(images) != len(digits) or digits.max() > 9:
            raise DatasetCorruptError(
                f"Expected MNIST's {part} files in {self._files.folder} to hold as many images as digits from 0 to 9, but got "
                f"{len(images)} images and {len(digits)} numbers up to {digits.max()}: delete them and fetch them again."
            )
        return images, digits


@dataclass(eq=False)
class MNIST(_Mnist):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._writers = IdxFiles(
            "QMNIST",
            located(self.root) / "QMNIST" / "raw",
            "fetch it (1 MB) with dataset.download=true, or point FEDFACET_DATA at a folder that holds mnist/QMNIST/raw",
        )

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the real layout, eight writers; see ``DatasetSource.generate``."""
        for part, name, count in zip(PARTS, PUBLISHED, (480, 200), strict=True):
            rows = np.zeros((count, _COLUMNS), dtype=">i4")
            writers = np.arange(count) // 10 % 8
            rows[:, _DIGIT], rows[:, _WRITER], rows[:, _SERIES] = (
                self._write(part, count),
                writers,
                np.array(SERIES)[writers % 2],
            )
            self._writers.write(name, rows, _INT)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read images, digits and writers; see ``DatasetSource.load``."""
        if self.download:
            self._fetch()
            for name, published in PUBLISHED.items():
                if self._writers.find(name) is None:
                    fetch_file(f"{QMNIST}/{name}.gz", self._writers.folder / f"{name}.gz", published=published)
        images, digits = zip(*map(self._read, PARTS), strict=True)
        described = np.concatenate(list(map(self._rows, PUBLISHED, digits))).astype(np.int64)
        train, test = np.split(np.arange(len(described)), [len(digits[0])])
        return Dataset(
            InMemoryInputs(torch.from_numpy(np.concatenate(images)[:, None])),
            np.concatenate(digits).astype(np.int64),
            (described[:, _SERIES] == SERIES[1]).astype(np.int64),
            train,
            test,
            None,
            tuple("0123456789"),
            ("staff", "students"),
            mean=(0.1307,),
            std=(0.3081,),
            columns={"writer": described[:, _WRITER]},
        )

    def _rows(self, name: str, digits: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return QMNIST's rows for these digits, shape (N, 8)."""
        rows: NDArray[np.int32] = self._writers.read(name, (_COLUMNS,), ">i4")[: len(digits)]
        same = len(rows) == len(digits) and np.array_equal(rows[:, _DIGIT], digits)
        if not same or not np.isin(rows[:, _SERIES], SERIES).all():
            raise DatasetCorruptError(
                f"Expected {name} in {self._writers.folder} to have MNIST's digits, row by row, and the series 0 and 4, but it "
                "has not: delete it and fetch it again."
            )
        return rows


@dataclass(eq=False)
class ColouredMNIST(_Mnist):
    """MNIST in red or green: y = digit >= 5, attribute = colour drawn Bernoulli(0.5), no label noise.

    Coloured MNIST as FedDiverse makes it (arXiv:2504.11216, section 5.1), after Arjovsky et al., arXiv:1907.02893, who also
    flip labels. Training samples come from MNIST's training files, test samples are MNIST's 10,000 test images, whose four
    groups are therefore only approximately equal. MNIST: LeCun, Cortes and Burges, CC BY-SA 3.0.

    Args:
        seed: of the colours; it does not follow the run's seed.
        download: fetch the files (12 MB) into ``root`` with torchvision where they are missing.
    """

    _: KW_ONLY
    seed: int = 0

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in MNIST's layout; see ``DatasetSource.generate``."""
        # Colours are drawn at random, so twice what the fullest cell asks for, and some for validation.
        per_cell = 20 + 2 * int(20 if demand is None else demand.max())
        for part, count in zip(PARTS, (4 * per_cell, 200), strict=True):
            self._write(part, count)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read MNIST and colour it; see ``DatasetSource.load``."""
        if self.download:
            self._fetch()
        pixels, digits = zip(*map(self._read, PARTS), strict=True)
        y = (np.concatenate(digits) >= 5).astype(np.int64)
        draws = [rng.stream(self.seed, f"colour-{part}") for part in PARTS]
        a = np.concatenate([draw.integers(2, size=len(part)) for draw, part in zip(draws, digits, strict=True)])
        images = InMemoryInputs(colour(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(a)))
        train, test = np.split(np.arange(len(y)), [len(digits[0])])
        names = ("digit<5", "digit>=5")
        return Dataset(images, y, a, train, test, None, names, COLOURS, mean=(0.1307,) * 3, std=(0.3081,) * 3)
