"""Files of data sets come from anywhere: whatever is wrong with one ends in a sentence."""

import contextlib
import gzip
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fedfacet.data.entries import visible
from fedfacet.errors import DatasetCorruptError, first_line

MOST_BYTES = 1 << 30
"""What a compressed file may unpack to in memory; the largest that is read whole takes 47 MB."""


@contextlib.contextmanager
def reading(path: Path, expected: str, remedy: str) -> Iterator[None]:
    """Refuse a file that is not what it should be, whatever its parser or its checks run into.

    Args:
        path: of the file; only a regular one is read, because a pipe could be waited for without end.
        expected: what the file should be, as an object of ``Expected``.
        remedy: what to do about it, as the end of the sentence.

    Raises:
        DatasetCorruptError: naming the file.
    """
    try:
        if not path.is_file():
            raise OSError("it is no file")
        yield
    except DatasetCorruptError:
        raise
    except Exception as error:  # each parser has errors of its own, and some have many: pickle's, Pillow's, a MemoryError
        raise DatasetCorruptError(
            f"Expected {visible(path)} to be {expected}, but it cannot be read ({type(error).__name__}: "
            f"{visible(first_line(error))}): {remedy}."
        ) from error


def unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked where its name ends in ``.gz``.

    Raises:
        ValueError: if it unpacks to more than ``MOST_BYTES``.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    content = io.BytesIO()
    with gzip.open(path) as file:
        while chunk := file.read(1 << 20):
            content.write(chunk)
            _check_size(content.tell())
    return content.getvalue()


def check_archive(path: Path) -> None:
    """Refuse a zip archive that unpacks to more than ``MOST_BYTES``, with a ``ValueError``."""
    with zipfile.ZipFile(path) as archive:
        _check_size(sum(member.file_size for member in archive.infolist()))


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
