"""What CIFAR-10 and CIFAR-100 share: the files of their binary version, in which each image follows its labels.

A record is one byte per label column and 3,072 bytes of image: 32 x 32 red values, then green, then blue. The authors also
publish a Python version, which is pickled and therefore not read: a pickle can make a program do anything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.archives import obtain
from fedfacet.data.generated import write_lines, write_whole
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetNotFoundError

BYTES = 3 * 32 * 32
_MOST_RECORDS = 200_000
_MOST_NAME_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class CifarFiles:
    """The files of CIFAR-10 or CIFAR-100.

    Args:
        name: of the data set, for messages.
        folder: that holds the files.
        pickled: the name of the folder of the Python version.
        megabytes: the size of the archive.
        digest: of the archive, as its authors publish it.
    """

    name: str
    folder: Path
    pickled: str
    megabytes: int
    digest: str

    def obtain(self, url: str, official: str, *, download: bool) -> None:
        """Fetch and unpack the archive if the folder is missing and ``download`` is set.

        Raises:
            DatasetNotFoundError: if the folder is missing and stays so.
        """
        obtain(
            self.folder,
            url=url,
            archive=self.folder.parent / official.rpartition("/")[2],
            allowed=download,
            missing=f"Expected {self.name} in {self.folder}, but it is not there: {self._how_to_get()}.",
            published=self.digest if url == official else None,
        )

    def names(self, part: str, number: int) -> tuple[str, ...]:
        """Return the names of classes, one a line.

        Raises:
            DatasetNotFoundError: if there is no such file.
            DatasetCorruptError: if it holds another number of names.
        """
        content = self._bytes(part, _MOST_NAME_BYTES)
        with reading(self.folder / part, f"a list of {number} names", self._remedy):
            names = tuple(content.decode("ascii").split())
            if len(set(names)) != number:
                raise ValueError(f"it holds {len(set(names))} different names")
        return names

    def records(self, part: str, numbers: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the images of a file, shape (N, 3, 32, 32), and their labels, shape (N, columns).

        Args:
            part: the file's name.
            numbers: of classes, one for each column of labels.

        Raises:
            DatasetNotFoundError: if there is no such file.
            DatasetCorruptError: if it ends within a record, or a label is unknown, or a class has no image.
        """
        size = len(numbers) + BYTES
        content = self._bytes(part, _MOST_RECORDS * size)
        with reading(self.folder / part, f"a whole file of {self.name} in its binary version", self._remedy):
            if not content or len(content) % size:
                raise ValueError(f"its {len(content)} bytes are no whole number of records of {size} bytes")
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
            for column, number in enumerate(numbers):
                found = np.unique(rows[:, column])
                if found.tolist() != list(range(number)):
                    raise ValueError(f"its labels are of {len(found)} classes up to {found.max()}, and not of {number}")
        return rows[:, len(numbers) :].reshape(-1, 3, 32, 32), rows[:, : len(numbers)].astype(np.int64)

    def _bytes(self, part: str, most: int) -> bytes:
        file = self.folder / part
        if not file.exists():
            raise DatasetNotFoundError(
                f"Expected {self.name}'s file {part!r} in {self.folder}, but it is not there: {self._remedy}."
            )
        with reading(file, f"a file of {self.name} in its binary version", self._remedy):
            if (size := file.stat().st_size) > most:
                raise ValueError(f"it has {size:,} bytes, which is more than {most:,}")
            return file.read_bytes()

    @property
    def _remedy(self) -> str:
        return "delete the folder and fetch it again with dataset.download=true"

    def _how_to_get(self) -> str:
        root = self.folder.parent
        if (root / "classes.csv").is_file():
            return (
                f"{root} has contact sheets, so write the binary version into a folder DIR with `python tests/data/"
                f"cifar_sheets.py {root} DIR` (see docs/participation.md), and give dataset.root=DIR"
            )
        pickles = f"{self.pickled} is there, but it is pickled, and a pickle may run code, so it is not read; "
        return (
            f"{pickles if (root / self.pickled).is_dir() else ''}fetch the binary version ({self.megabytes} MB) with "
            f"dataset.download=true, name the folder that holds {self.folder.name} with dataset.root=DIR, point FEDFACET_DATA "
            f"at a folder that holds {root.name}/{self.folder.name}, or use `experiment=digits_gsc` instead, which needs no "
            "download"
        )


def write_records(file: Path, pixels: NDArray[np.uint8], *columns: NDArray[np.int64]) -> None:
    """Write images of ``BYTES`` bytes each behind their labels, as ``write_whole`` does."""
    labels = np.stack(columns, axis=1).astype(np.uint8)
    write_whole(file, np.concatenate([labels, pixels.reshape(-1, BYTES)], axis=1).tobytes())


def write_names(file: Path, names: Iterable[str]) -> None:
    """Write names of classes and the empty line that the official files end with."""
    write_lines(file, [*names, ""])
