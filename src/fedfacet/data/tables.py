"""Tables of people, one to a line: csv files whose faults are named by line, and what a model is given of them."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError

_WHOLE = re.compile(r"-?[0-9]{1,9}")
_MOST_NAMED = 9
_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Some columns of a csv file.

    Attributes:
        path: of the file.
        remedy: what to do about a fault, as the end of a sentence.
        lines: the line of the file on which each row ends.
        columns: entries by name of the column.
        private: whether errors keep entries to themselves.
    """

    path: Path
    remedy: str
    lines: Sequence[int]
    columns: dict[str, list[str]]
    private: bool

    def __len__(self) -> int:
        return len(self.lines)

    def codes(self, name: str, categories: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of a column's entries among the ``categories``, shape (N,).

        Raises:
            DatasetCorruptError: if an entry is none of them.
        """
        known = {category: position for position, category in enumerate(categories)}
        shown = ", ".join(map(repr, categories[:_MOST_NAMED]))
        more = f" or another of {len(categories)}" if len(categories) > _MOST_NAMED else ""
        return self._numbers(name, known.get, f"one of {shown}{more}")

    def whole(self, name: str, least: int, most: int, blank: int | None = None) -> NDArray[np.int64]:
        """Return a column of whole numbers, shape (N,); ``blank`` stands for an empty entry, which is refused without it.

        Raises:
            DatasetCorruptError: if an entry is no whole number from ``least`` to ``most``.
        """

        def number(entry: str) -> int | None:
            if not entry:
                return blank
            # int() would also take 1_000, blanks around a number, and digits of other scripts.
            return value if _WHOLE.fullmatch(entry) and least <= (value := int(entry)) <= most else None

        return self._numbers(name, number, f"a whole number from {least} to {most}{'' if blank is None else ', or blank'}")

    def _numbers(self, name: str, number_of: Callable[[str], int | None], expected: str) -> NDArray[np.int64]:
        entries = self.columns[name]
        numbers = {entry: number_of(entry) for entry in set(entries)}
        if None in numbers.values():
            row = next(row for row, entry in enumerate(entries) if numbers[entry] is None)
            came = "something else" if self.private else repr(entries[row][:_MOST_SHOWN])
            raise DatasetCorruptError(
                f"Expected `{name}` to be {expected} in every line of {self.path}, but got {came} in line {self.lines[row]}: "
                f"{self.remedy}."
            )
        return np.array([numbers[entry] for entry in entries], dtype=np.int64)


def read_table(
    path: Path,
    wanted: Sequence[str],
    *,
    expected: str,
    remedy: str,
    names: Sequence[str] | None = None,
    comment: str | None = None,
    private: bool = False,
) -> Table:
    """Read the ``wanted`` columns of a csv file; all others are dropped line by line.

    Lines may end in any way, a byte order mark and empty lines are passed over, and so are blanks after a comma. Of two
    columns of one name the first counts.

    Args:
        path: of the file.
        wanted: names of columns.
        expected: what the file should be, as an object of ``Expected``.
        remedy: what to do about a fault, as the end of a sentence.
        names: of all columns, where the file has no header.
        comment: what lines begin with that are none of the table's.
        private: whether errors, from here on, say where an entry is wrong without saying what it is. A line with a comma too
            many shifts every entry, a name among them, into the next column.

    Raises:
        DatasetCorruptError: naming the file, and the line where it is one line's fault, if the file is unreadable, has no rows,
            lacks a column, or has a line with more or fewer entries than columns.
    """
    lines: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    same: dict[str, str] = {}
    with reading(path, expected, remedy), path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, skipinitialspace=True, strict=True)
        header = next(rows, []) if names is None else names
        if lacking := [name for name in wanted if name not in header]:
            raise DatasetCorruptError(
                f"Expected a column `{lacking[0]}` in line 1 of {path}, which names the columns, but there is none: {remedy}."
            )
        places = [(columns[name], header.index(name)) for name in wanted]
        for row in rows:
            if not row or (comment is not None and row[0].startswith(comment)):
                continue
            if len(row) != len(header):
                raise DatasetCorruptError(
                    f"Expected {len(header)} entries in every line of {path}, but got {len(row)} in line {rows.line_num}: "
                    f"{remedy}."
                )
            lines.append(rows.line_num)
            for column, place in places:
                # One object per distinct entry: a census has millions of rows of few codes.
                column.append(same.setdefault(row[place], row[place]))
    if not lines:
        raise DatasetCorruptError(f"Expected {path} to be {expected}, but it has no rows: {remedy}.")
    return Table(path, remedy, lines, columns, private)


def header_of(path: Path, *, expected: str, remedy: str) -> list[str]:
    """Return the names of a csv file's columns, which its first line has.

    Raises:
        DatasetCorruptError: if the file is unreadable, or a name is empty or stands there twice.
    """
    with reading(path, expected, remedy), path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, skipinitialspace=True, strict=True), [])
    if not names or len(set(names)) < len(names) or "" in names:
        raise DatasetCorruptError(
            f"Expected line 1 of {path} to name every column, each once, but got {', '.join(names)[:200]!r}: {remedy}."
        )
    return names


def one_hot(codes: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """Return a column of zeros and ones per category, shape (N, count); a row of zeros for a code that is not below ``count``.

    Example:
        >>> one_hot(np.array([1, 0, 2]), 2)
        array([[0., 1.],
               [1., 0.],
               [0., 0.]], dtype=float32)
    """
    columns: NDArray[np.float32] = (codes[:, None] == np.arange(count)).astype(np.float32)
    return columns


def standardised(values: NDArray[np.number[Any]], train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return columns less their mean, over their standard deviation, both of the rows ``train``; shape (N, D).

    The deviation is that of the population, and 1 for a constant column.

    Example:
        >>> standardised(np.array([[1, 7], [3, 7], [9, 7]]), np.array([0, 1]))
        array([[-1.,  0.],
               [ 1.,  0.],
               [ 7.,  0.]], dtype=float32)
    """
    deviations = values[train].std(axis=0)
    scaled: NDArray[np.float64] = (values - values[train].mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    return scaled.astype(np.float32)
