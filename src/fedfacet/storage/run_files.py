"""What a run or a site has written read back: held to its digest and to its form, or refused in a sentence that names it."""

import csv
import functools
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedfacet.errors import CheckpointError, FedFacetError, first_line
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.regular_file import bytes_of, opened_regular

LIST = "SHA256SUMS"
"""Lists the sha256 of what a run or an attack has written, as ``sha256sum`` does, while neither writes in the folder.

Either removes the list before it writes, and writes it last: a process that is killed leaves none.
"""
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
    with atomic_write(folder / LIST) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def listed(file: Path) -> str | None:
    """Return the sha256 that a file ought to have; ``None`` where no list has it.

    Raises:
        CheckpointError: if the list is damaged.
    """
    folder = file.parent.parent if file.parent.name == _INSIDE else file.parent
    try:
        stat = os.lstat(folder / LIST)
        return _read(folder / LIST, (stat.st_mtime_ns, stat.st_size, stat.st_ino)).get(file.relative_to(folder).as_posix())
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


log = logging.getLogger(__name__)

Value = TypeVar("Value")
Keys = Mapping[str, Callable[[Any], bool]]
"""Key -> whether a value is of its kind."""

MOST_BYTES = 1 << 28
"""The table of 100,000 rounds has some 200 MB."""


def read(
    file: Path,
    parse: Callable[[bytes], Value],
    most: int = MOST_BYTES,
    remedy: str = "bring it back, or leave that folder out",
) -> Value:
    """Return what a file holds.

    Args:
        file: of a run folder, of an audit's or of a site's; a run may write to it meanwhile.
        parse: makes the value of the content. It runs before the digest counts, since a ValueError of its own says more.
        most: how many bytes the file may have.
        remedy: what the user can do about a file that is refused.

    Raises:
        CheckpointError: naming the file, if it is missing, a link, a folder or a pipe, too large, damaged or of another form.
    """
    try:
        content, fault = _held(file, most)
        value = parse(content)
    except FedFacetError:
        raise
    except Exception as error:  # whatever damage makes of the readers of several libraries
        fault = _fault_of(error)
    else:
        if fault is None:
            return value
    raise CheckpointError(f"Expected {file} to be as it was written, but {fault}: {remedy}.") from None


def is_there(file: Path) -> bool:
    """Tell whether there is something to read, or ought to be: ``read`` refuses what a list has and the folder lacks."""
    return os.path.lexists(file) or listed(file) is not None


def warn_unverified(folders: Iterable[Path]) -> None:
    """Log a line where folders have no list of digests."""
    folders = list(folders)
    if without := [folder for folder in folders if not os.path.lexists(folder / LIST)]:
        which = str(without[0]) if len(folders) == 1 else f"{len(without)} of {len(folders)} runs, such as {without[0]}"
        log.warning(
            "No %s in %s: the run still works or was killed, or an older version wrote it. Damage to its files need not show.",
            LIST,
            which,
        )


def json_of(file: Path, keys: Keys | None = None, most: int = MOST_BYTES) -> Any:
    """Return what a JSON file holds.

    Args:
        file: see ``read``.
        keys: that a table must have; without them any content will do.
        most: how many bytes it may have.

    Raises:
        CheckpointError: as ``read``.
    """

    def parse(content: bytes) -> Any:
        value = json.loads(content.decode())
        if keys is not None:
            check_keys(value, keys)
        if isinstance(value, dict) and isinstance(sha256 := value.get("sha256"), str):
            del value["sha256"]
            if _sha256(value) != sha256:
                raise ValueError("it is damaged, as its sha256 shows")
        return value

    return read(file, parse, most)


def sealed_json(table: Mapping[str, Any]) -> str:
    """Return a table as JSON with its sha256, to which ``json_of`` holds it."""
    return json.dumps({**table, "sha256": _sha256(table)}, indent=2) + "\n"


def _sha256(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def json_lines_of(file: Path, keys: Keys) -> list[dict[str, Any]]:
    """Return the tables of a file that has one a line.

    Raises:
        CheckpointError: as ``read``, with the line and the key.
    """

    def parse(content: bytes) -> list[dict[str, Any]]:
        tables = []
        for number, line in enumerate(content.decode().splitlines(), 1):
            try:
                tables.append(json.loads(line))
                check_keys(tables[-1], keys)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return tables

    return read(file, parse)


def check_keys(value: Any, keys: Keys, *, needed: bool = True) -> None:
    """Hold a table to its keys.

    Args:
        value: of a file.
        keys: see ``Keys``.
        needed: whether all must be there; otherwise ``null`` stands for one that is not.

    Raises:
        ValueError: naming the first key that lacks or whose value is of another kind.
    """
    if not isinstance(value, dict):
        raise ValueError("it holds no table")
    for key, fits in keys.items():
        if needed and key not in value:
            raise ValueError(f"`{key}` is missing")
        if not (fits(value.get(key)) or (not needed and value.get(key) is None)):
            raise ValueError(f"`{key}` is {repr(value[key])[:60]}, which no run writes")


def is_whole(value: Any, below: int = 2**63) -> bool:
    """Tell whether a value is a whole number, 0 or larger."""
    return type(value) is int and 0 <= value < below


_SUMMARY: Keys = {
    **{key: lambda value: isinstance(value, str) for key in ("status", "partition_digest", "git_commit", "stopped")},
    **{key: lambda value: isinstance(value, dict) for key in ("final", "best", "heterogeneity_error")},
    **dict.fromkeys(("rounds", "num_clients"), is_whole),
    "participation_counts": lambda value: isinstance(value, list) and all(map(is_whole, value)),
    "hardware": lambda value: isinstance(value, dict | str),
}
"""What of a summary is read, where it is there."""


def summary_of(folder: Path) -> dict[str, Any] | None:
    """Return what the summary of a run holds; ``None`` where the run has not written one.

    Raises:
        CheckpointError: if it cannot be read or is not what a run writes.
    """

    def parse(content: bytes) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(content)
        check_keys(summary, _SUMMARY, needed=False)
        return summary

    file = folder / "summary.json"
    return read(file, parse) if is_there(file) else None


def rows_of(
    file: Path, needed: Sequence[str] = (), cell: Callable[[str, str], Any] | None = None, *, least: int = 0
) -> list[dict[str, Any]]:
    """Return the rows of a csv file, each with a value in every column.

    Args:
        file: see ``read``.
        needed: columns that it must have.
        cell: makes a value of a column and a text; without it all stay text.
        least: how many rows it must have.

    Raises:
        CheckpointError: as ``read``, with the line and the column.
    """

    def parse(content: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = list(_rows(content))
        if len(rows) < least:
            raise ValueError(f"it has {len(rows) or 'no'} rows")
        if lacking := [column for column in needed if rows and column not in rows[0]]:
            raise ValueError(f"it has no column `{lacking[0]}`")
        if cell is None:
            return rows
        for number, row in enumerate(rows, 2):
            for column, text in row.items():
                try:
                    row[column] = cell(column, text)
                except ValueError:
                    raise ValueError(f"line {number}: `{column}` is {text[:60]!r}, which no run writes") from None
        return rows

    return read(file, parse)


def measured(column: str, text: str) -> Any:
    """Return a value of ``metrics.csv``: the round's number, the cohort's clients, or what was measured, NaN where nothing was.

    Raises:
        ValueError: if the text is none.
    """
    if column == "cohort":
        clients = tuple(map(int, text.split()))
        if min(clients, default=0) < 0:
            raise ValueError(text)
        return clients
    return int(text) if column == "round" else float(text or "nan")


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.csv``, one a round; ``cohort`` is a tuple, what was not measured is ``None``."""
    file = folder / "metrics.csv"
    return rows_of(file, ("round", "cohort"), _value) if is_there(file) else []


def _value(name: str, text: str) -> Any:
    if name == "cohort":
        return measured(name, text)
    try:
        return int(text)
    except ValueError:
        return float(text) if text else None


def each_row_of(file: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a csv file one by one, of which there may be millions, unlike ``rows_of``.

    Raises:
        CheckpointError: as ``read``.
    """
    try:
        yield from _rows(read(file, bytes))
    except (ValueError, csv.Error) as error:
        raise CheckpointError(f"Expected {file} to be a table of the run, but {_fault_of(error)}: bring it back.") from None


def _rows(content: bytes) -> Iterator[dict[str, str]]:
    for row in csv.DictReader(io.StringIO(content.decode(), newline="")):
        if None in row or None in row.values():
            raise ValueError("a row has more or fewer values than there are columns")
        yield row


def _held(file: Path, most: int) -> tuple[bytes, str | None]:
    """Return what a file holds, and what its digest has against it.

    Raises:
        OSError, ValueError: if it cannot be read.
    """
    while True:
        sha256 = listed(file)
        content = bytes_of(file, most)
        if sha256 is None:
            return _of_a_run_under_way(file, content)
        if hashlib.sha256(content).hexdigest() == sha256:
            return content, None
        if listed(file) == sha256:  # or a run has gone on meanwhile
            return content, f"it is damaged, as its sha256 in {LIST} shows"


def _of_a_run_under_way(file: Path, content: bytes) -> tuple[bytes, str | None]:
    """Hold a table to the rows that the last checkpoint knows; a row that has no end is left out."""
    last = file.parent / "checkpoints" / "last.ckpt"
    if file.suffix != ".csv" or not last.is_file():
        return content, None
    status = last.stat()
    if not (record := _records(last, (status.st_mtime_ns, status.st_size, status.st_ino)).get(file.name)):
        return content, None
    if hashlib.sha256(content[: record["bytes"]]).hexdigest() != record["sha256"]:
        return content, f"it does not begin with the {record['rows']} rows that {last} tells of"
    return content[: content.rfind(b"\n") + 1], None


@functools.lru_cache(maxsize=64)
def _records(last: Path, written: tuple[int, int, int]) -> Mapping[str, Any]:
    """Return file -> the record of a table that a checkpoint keeps; nothing of one that cannot be read."""
    from fedfacet.storage import checkpoint  # torch loads here

    try:
        callbacks = checkpoint.verified(last)[0]["callbacks"]
    except CheckpointError as error:
        log.warning("%s; the tables beside it are read unverified.", error)
        return {}
    kept = [one for held in callbacks.values() for one in held.items()]
    return {name: one for name, one in kept if isinstance(one, dict) and one.keys() == {"rows", "bytes", "sha256"}}


def _fault_of(error: Exception) -> str:
    """Return what is wrong with a file, without commands to a terminal."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    text = (isinstance(error, OSError) and error.strerror) or first_line(error)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if isinstance(error, OSError | ValueError) else f"it cannot be read ({type(error).__name__}: {text})"
