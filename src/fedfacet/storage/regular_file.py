"""Files opened that somebody else may have put there: no link, no pipe, no device, and no more than a memory holds."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither pipes nor such links


@contextmanager
def opened_regular(file: Path) -> Iterator[BufferedReader]:
    """Lend a file for reading.

    Raises:
        FileNotFoundError: if nothing is there.
        OSError: if it cannot be read, or is a link, a folder or a pipe, which is not waited for.
    """
    if file.is_symlink():
        raise OSError("it is a link")
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | _FLAGS)) as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise OSError("it is no file")
        yield source


def bytes_of(file: Path, most: int) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: as ``opened_regular``.
        ValueError: if it has more than ``most`` bytes.
    """
    with opened_regular(file) as source:
        if os.fstat(source.fileno()).st_size > most:
            raise ValueError(f"it is larger than {most:,} bytes")
        return source.read()
