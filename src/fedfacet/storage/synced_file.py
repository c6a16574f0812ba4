"""Files that are whole and on the disk once they are written, in folders that a run made when it began."""

import os
from collections.abc import Iterable
from pathlib import Path

from fedfacet.errors import FedFacetError
from fedfacet.storage.whole_file import written_whole

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
        with written_whole(path) as unfinished, open(unfinished, "wb") as file:
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
