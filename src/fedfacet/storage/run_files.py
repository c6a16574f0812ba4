"""The files of a run folder read: somebody else may have put a pipe there, a device, or what no memory holds."""

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 28
"""The table of 100,000 rounds has some 200 MB."""

_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # Windows has no pipes among its files


def content_of(file: Path, most: int = MOST_BYTES) -> bytes:
    """Return what a file holds.

    Args:
        file: of a run folder.
        most: how many bytes it may have.

    Raises:
        OSError: if it cannot be read, or is a folder or a pipe, which nobody waits for.
        ValueError: if it is larger.
    """
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | _NO_WAITING)) as source:
        told = os.fstat(source.fileno())
        if not stat.S_ISREG(told.st_mode):
            raise OSError(f"{file} is no file")
        if told.st_size > most:
            raise ValueError(f"it is larger than {most:,} bytes")
        return source.read()


def json_of(file: Path, most: int = MOST_BYTES) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: as ``content_of``.
        ValueError: if it is larger, or no JSON.
    """
    try:
        return json.loads(content_of(file, most).decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of a csv file, each with a value in every column.

    Raises:
        OSError: as ``content_of``.
        ValueError: if it is larger, or no table.
    """
    return list(each_row_of(file))


def each_row_of(file: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a csv file one by one; see ``rows_of``."""
    try:
        for row in csv.DictReader(io.StringIO(content_of(file).decode(), newline="")):
            if None in row or None in row.values():
                raise ValueError("a row has more or fewer values than there are columns")
            yield row
    except csv.Error as error:
        raise ValueError(str(error)) from None
