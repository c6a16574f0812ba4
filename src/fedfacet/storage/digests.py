"""The sha256 of what a run or an attack has written, in a list that its folder holds while neither writes there.

``SHA256SUMS`` has a line for each file, as ``sha256sum`` writes it. Either removes the list before it writes anything, and
writes it when all else is written. So a process may be killed at any moment: then there is no list.
"""

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fedfacet.errors import CheckpointError
from fedfacet.storage.regular_file import bytes_of, opened_regular
from fedfacet.storage.whole_file import written_whole

LIST = "SHA256SUMS"
_INSIDE = "model"
"""The folder in a run folder whose files are in the list of that."""
_LISTED = frozenset({".csv", ".json", ".jsonl", ".npz", ".safetensors", ".yaml"})
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MOST_BYTES = 1 << 20


def write_list(folder: Path) -> None:
    """List the files of a folder that are read back; checkpoints and clients' memory have seals of their own."""
    files = [file for place in (folder, folder / _INSIDE) if place.is_dir() for file in sorted(place.iterdir())]
    wanted = [file for file in files if file.suffix in _LISTED and file.is_file() and not file.is_symlink()]
    text = "".join(f"{digest_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in wanted)
    with written_whole(folder / LIST) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def listed(file: Path) -> str | None:
    """Return the sha256 that a file ought to have; ``None`` where no list has it.

    Raises:
        CheckpointError: if the list is damaged.
    """
    folder = file.parent.parent if file.parent.name == _INSIDE else file.parent
    try:
        told = os.lstat(folder / LIST)
        return _read(folder / LIST, (told.st_mtime_ns, told.st_size, told.st_ino)).get(file.relative_to(folder).as_posix())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"Expected {folder / LIST} to list the sha256 of the run's files, but it cannot be read ({error}): bring it back, "
            "or remove it, and the files are read unverified."
        ) from None


def digest_of(file: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        OSError: if it cannot be read, or is a link, a folder or a pipe.
    """
    with opened_regular(file) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@functools.lru_cache(maxsize=64)
def _read(file: Path, written: tuple[int, int, int]) -> Mapping[str, str]:
    digests = {}
    for line in bytes_of(file, _MOST_BYTES).decode().removesuffix("\n").split("\n"):
        if not (found := _LINE.fullmatch(line)):
            raise ValueError("a line of it is no sha256 and a name")
        digests[found[2]] = found[1]
    return digests
