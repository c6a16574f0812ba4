"""Files that are there whole or not at all, and on the disk once they are written if need be."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfacet.errors import FedFacetError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Lend a file beside ``path`` to be written, which takes its place at one blow, or is removed where something goes wrong.

    Example:
        >>> import tempfile
        >>> from fedfacet.storage.atomic_write import atomic_write
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with atomic_write(path) as unfinished:
        ...     _ = unfinished.write_text("whole")
        ...     path.exists()
        False
        >>> path.read_text()
        'whole'
    """
    unfinished = path.with_name(path.name + ".part")
    unfinished.unlink(missing_ok=True)  # in a folder of somebody else's it may lead elsewhere
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # there only if the disk is full or the process is stopped


_IS_WINDOWS = not hasattr(os, "O_DIRECTORY")


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file; a reader sees the old one or the new one, whenever the process dies.

    Args:
        path: of the file, in a folder that exists.
        parts: its content, piece by piece.

    Raises:
        FedFacetError: if the folder is gone.
    """
    try:
        with atomic_write(path) as unfinished, open(unfinished, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise folder_gone(path.parent) from None


def place(source: Path, target: Path) -> None:
    """Have a file lie at another path too, without writing it again where the file system knows hard links.

    Args:
        source: a file that is replaced and never written to.
        target: in the same folder.

    Raises:
        FedFacetError: if the folder is gone.
    """
    link = target.with_name(f"{target.name}.link.part")
    try:
        link.unlink(missing_ok=True)
        try:
            os.link(source, link)
        except FileNotFoundError:
            raise
        except OSError:
            write_synced(target, [source.read_bytes()])
            return
        try:
            os.replace(link, target)
        finally:
            link.unlink(missing_ok=True)  # there still if both were one file already
    except FileNotFoundError:
        raise folder_gone(source.parent) from None


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or the names in a folder.

    Windows opens no folders, and syncs only files that may be written to; it keeps names by itself.
    """
    try:
        if _IS_WINDOWS and path.is_dir():
            return
        descriptor = os.open(path, os.O_RDWR if _IS_WINDOWS else os.O_RDONLY)
    except FileNotFoundError:
        raise folder_gone(path.parent) from None
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_gone(folder: Path) -> FedFacetError:
    """Return the error for a run whose folder was removed while it went on."""
    return FedFacetError(
        f"Expected the folder {folder}, which the run writes to, but it was removed while the run went on: start a new run."
    )


def json_text(content: Any) -> str:
    """Return content as indented JSON in which numbers that are not finite are null.

    Args:
        content: mappings, lists, tuples, texts and numbers.

    Example:
        >>> print(json_text({"test/acc": float("nan")}))
        {
          "test/acc": null
        }
    """
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
