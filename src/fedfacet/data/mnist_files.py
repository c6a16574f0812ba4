"""The files of MNIST: headers that say their sizes, and bytes; torchvision's layout, compressed or not."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.generated import write_whole
from fedfacet.data.reading import reading, unpacked
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

PARTS = ("train", "t10k")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_HEADERS = {3: 16, 2: 12, 1: 8}


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
        count, header = int.from_bytes(content[4:8], "big"), _HEADERS[1 + len(row)]
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


def mnist_files(root: Path) -> IdxFiles:
    """Return MNIST's files in a folder in torchvision's layout."""
    return IdxFiles(
        "MNIST",
        root / "MNIST" / "raw",
        "fetch MNIST (12 MB) with dataset.download=true, point FEDFACET_DATA at a folder that holds mnist/MNIST/raw, or use "
        "`experiment=digits_gsc` instead, which needs no download",
    )


def images_and_digits(files: IdxFiles, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return a part's images, shape (N, 28, 28), and their digits, shape (N,).

    Raises:
        DatasetCorruptError: if there are not as many of both, or numbers above 9.
    """
    images, digits = files.read(f"{part}-{IMAGES}", (28, 28)), files.read(f"{part}-{LABELS}", ())
    if len(images) != len(digits) or digits.max() > 9:
        raise DatasetCorruptError(
            f"Expected MNIST's {part} files in {files.folder} to hold as many images as digits from 0 to 9, but got "
            f"{len(images)} images and {len(digits)} numbers up to {digits.max()}: delete them and fetch them again."
        )
    return images, digits
