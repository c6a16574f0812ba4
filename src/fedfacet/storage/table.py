"""Tables that a run adds rows to, and that a resumed run takes up only as they were written."""

import csv
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfacet.errors import CheckpointError, FedFacetError, first_line
from fedfacet.storage.atomic_write import folder_gone
from fedfacet.storage.regular_file import bytes_of
from fedfacet.storage.run_files import MOST_BYTES


class Table:
    """A csv file that grows by a row at a time, and the number of its rows and their sha256.

    Args:
        file: of the table.
        adapts: whether a row may have other columns than the first one: what lacks is left empty, what is new is left out.
    """

    def __init__(self, file: Path, *, adapts: bool = False) -> None:
        self.file = file
        self._adapts = adapts
        self._columns: list[str] | None = None
        self._rows, self._bytes, self._sha256 = 0, 0, hashlib.sha256()
        self._taken_up = False

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint keeps to know the table by."""
        return {"rows": self._rows, "bytes": self._bytes, "sha256": self._sha256.hexdigest()}

    def take_up(self, record: Mapping[str, Any]) -> None:
        """Go on from a record, if the table begins with the rows that it tells of; what follows them is a killed run's.

        Raises:
            CheckpointError: if the table is missing, shorter or another one.
        """
        rows, size, sha256 = (record.get(name) for name in ("rows", "bytes", "sha256"))
        if type(rows) is not int or type(size) is not int or rows < 0 or size < 0:
            raise CheckpointError(
                f"Expected a checkpoint that tells how long {self.file} was, but it does not: start a new run."
            )
        try:
            content = bytes_of(self.file, max(MOST_BYTES, 2 * size)) if size else b""
            there = content.count(b"\n") - 1
            fault = f"it has only {max(there, 0)} of them" if there < rows else "they have been changed"
            content = content[:size]
            self._columns = next(csv.reader([content.partition(b"\n")[0].decode()]), None)
        except FileNotFoundError:
            content, fault = b"", "it is missing"
        except (OSError, ValueError, csv.Error) as error:
            content, fault = b"", f"it cannot be read ({getattr(error, 'strerror', None) or first_line(error)})"
        if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
            raise CheckpointError(
                f"Expected {self.file} to begin with the {rows} rows that the run had written by its checkpoint, but {fault}: "
                "bring the file back as it was, or start a new run."
            )
        self._rows, self._bytes, self._sha256 = rows, size, hashlib.sha256(content)
        self._taken_up = True

    def cut_back(self, round: int) -> None:
        """Drop what lies beyond the rows taken up; a table that a run without a record finds later than round 0 stays."""
        if self.file.exists() and (self._taken_up or self._bytes or not round):
            os.truncate(self.file, self._bytes)
        self._taken_up = False

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows, all of them or none; without any nothing is written.

        Raises:
            ValueError: if one has other columns than the first row.
            FedFacetError: if somebody else has written to the table, or removed it.
        """
        if not rows:
            return
        columns = self._columns or list(rows[0])
        if self._adapts:
            rows = tuple({column: row.get(column, "") for column in columns} for row in rows)
        if other := next((list(row) for row in rows if list(row) != columns), None):
            raise ValueError(f"Expected the columns {columns} in every round, but got {other}: metrics have fixed names.")
        text = io.StringIO()
        head = [] if self._columns else [columns]
        csv.writer(text, lineterminator="\n").writerows([*head, *(row.values() for row in rows)])
        added = text.getvalue().encode()
        try:
            with open(self.file, "ab") as target:
                if self._taken_up and target.tell() > self._bytes:  # rows of a round that failed
                    target.truncate(self._bytes)
                    target.seek(self._bytes)
                if target.tell() != self._bytes:
                    raise FedFacetError(
                        f"Expected {self.file} to hold the {self._bytes} bytes that the run wrote, but it holds "
                        f"{target.tell()}: start a new run, and leave its files alone while it goes on."
                    )
                target.write(added)
        except FileNotFoundError:
            raise folder_gone(self.file.parent) from None
        self._columns, self._taken_up = columns, False
        self._rows += len(rows)
        self._bytes += len(added)
        self._sha256.update(added)


class NamedTable(Table):
    """A table whose rows with a ``client`` say the client's ``name`` too.

    Args:
        file: of the table.
        names: of clients, by number.
    """

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        super().__init__(file)
        self._names = names

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows with the names of their clients; see ``Table.append``."""
        if "name" in (self._columns or ["name"]):  # a resumed run of an older version has no such column
            rows = tuple({**row, "name": self._names[row["client"]]} for row in rows)
        super().append(*rows)


def table_of_clients(file: Path, names: Sequence[str]) -> Table:
    """Return a table whose rows name their clients, if these have names."""
    return NamedTable(file, names) if names else Table(file)
