"""Tables of people, one to a line: csv files whose faults are named by line, and what a model is given of them."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.dataset import InMemoryInputs
from fedfacet.data.entries import holds_controls, trimmed, visible
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
"""What may lie between the entries of a line, by name."""

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

    @property
    def trimmed(self) -> "Table":
        """The same without blanks around entries."""
        return replace(self, columns={name: [trimmed(entry) for entry in column] for name, column in self.columns.items()})

    def place(self, row: int) -> str:
        """Say where a row is."""
        return f"line {self.lines[row]} of {self.path}"

    def rows(self, positions: NDArray[np.int64]) -> "Table":
        """Return some rows, in the order of their positions."""
        columns = {name: [entries[row] for row in positions] for name, entries in self.columns.items()}
        return replace(self, lines=[self.lines[row] for row in positions], columns=columns)

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
    separator: str = ",",
) -> Table:
    """Read the ``wanted`` columns of a csv file; all others are dropped line by line.

    Lines may end in any way, a byte order mark and empty lines are passed over, and so are blanks after a separator and around
    the columns' names. Of two columns of one name the first counts.

    Args:
        path: of the file.
        wanted: names of columns.
        expected: what the file should be, as an object of ``Expected``.
        remedy: what to do about a fault, as the end of a sentence.
        names: of all columns, where the file has no header.
        comment: what lines begin with that are none of the table's.
        private: whether errors, from here on, say where an entry is wrong without saying what it is. A line with a comma too
            many shifts every entry, a name among them, into the next column.
        separator: of entries.

    Raises:
        DatasetCorruptError: naming the file, and the line where it is one line's fault, if the file is unreadable, has no rows,
            lacks a column, or has a line with more or fewer entries than columns.
    """
    lines: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    same: dict[str, str] = {}
    with _opened(path, expected, remedy) as file:
        rows = csv.reader(file, skipinitialspace=True, strict=True, delimiter=separator)
        header = [trimmed(name) for name in next(rows, [])] if names is None else names
        if lacking := [name for name in wanted if name not in header]:
            raise DatasetCorruptError(
                f"Expected a column `{lacking[0]}` in line 1 of {path}, which names the columns, but there is none: {remedy}."
            )
        places = [(columns[name], header.index(name)) for name in wanted]
        for row in _read(rows, path, lines, remedy):
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


@contextmanager
def _opened(path: Path, expected: str, remedy: str) -> Iterator[TextIO]:
    """Open a file of text; a file in another encoding than UTF-8 is refused when it is read."""
    with reading(path, expected, remedy), path.open(newline="", encoding="utf-8-sig") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            other = "UTF-16" if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else "another encoding"
            raise DatasetCorruptError(
                f"Expected {visible(path)} to be {expected} in UTF-8, but it is in {other}: save it as UTF-8, or {remedy}."
            ) from error


def _read(rows: Iterable[list[str]], path: Path, lines: Sequence[int], remedy: str) -> Iterator[list[str]]:
    """Yield rows; where one cannot be read, say after which line it begins: a quote may be open to the end of the file."""
    try:
        yield from rows
    except csv.Error as error:
        after = lines[-1] if lines else 1
        raise DatasetCorruptError(
            f"Expected rows in {path}, but what follows line {after} cannot be read ({error}): {remedy}."
        ) from error


def header_of(path: Path, *, expected: str, remedy: str, separator: str = ",") -> list[str]:
    """Return the names of a csv file's columns, which its first line has, without blanks around them.

    Raises:
        DatasetCorruptError: if the file is unreadable, if its first line has another separator, or if a name is empty, stands
            there twice or holds control characters.
    """
    with _opened(path, expected, remedy) as file:
        line = file.readline()
        file.seek(0)
        names = [trimmed(name) for name in next(csv.reader(file, skipinitialspace=True, strict=True, delimiter=separator), [])]
        others = {len(next(csv.reader([line], delimiter=other), [])): other for other in SEPARATORS.values()}
    if (most := max(others)) > len(names):
        name = next(name for name, other in SEPARATORS.items() if other == others[most])
        raise DatasetCorruptError(
            f"Expected line 1 of {path} to name columns apart by {separator!r}, but it has {most} by {others[most]!r} and "
            f"{len(names)} by {separator!r}: write {separator!r}, or give `dataset.separator={name}` to dataset=csv."
        )
    if not names or len(set(names)) < len(names) or "" in names or any(map(holds_controls, names)):
        found = "\\x00, as a file in UTF-16 has" if "\0" in line else repr(", ".join(names)[:200])
        raise DatasetCorruptError(f"Expected line 1 of {path} to name every column, each once, but got {found}: {remedy}.")
    return names


def group_counts(shape: Sequence[int], *codes: NDArray[np.int64]) -> list[Any]:
    """Return how many samples have each combination of some codes, which are below the numbers in ``shape``; nested lists."""
    counts = np.bincount(np.ravel_multi_index(codes, tuple(shape)), minlength=int(np.prod(shape)))
    nested: list[Any] = counts.reshape(shape).tolist()
    return nested


def check_published(counts: object, published: object, what: str, each: str, path: Path, remedy: str, note: str = "") -> None:
    """Raise ``DatasetCorruptError`` if a file does not have the published numbers of rows."""
    if counts != published:
        raise DatasetCorruptError(
            f"Expected the published {what} with {published} {each}, but {path} has {counts}{note}: {remedy}, or set "
            "dataset.verify_counts=false to use it all the same."
        )


def vectors(columns: Sequence[NDArray[np.float32]]) -> InMemoryInputs:
    """Return the inputs of columns side by side, each of shape (N, D)."""
    return InMemoryInputs(torch.from_numpy(np.concatenate(columns, axis=1)))


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

    The deviation is that of the population. A column whose values differ by no more than float32 rounds is constant: what is
    returned of it is the difference from its smallest value.

    Example:
        >>> standardised(np.array([[1, 7], [3, 7], [9, 7]]), np.array([0, 1]))
        array([[-1.,  0.],
               [ 1.,  0.],
               [ 7.,  0.]], dtype=float32)
    """
    known = values[train].astype(np.float64)
    smallest, largest = known.min(axis=0), known.max(axis=0)
    rounding = np.finfo(np.float32).eps * np.maximum(np.abs(smallest), np.abs(largest))
    deviations = known.std(axis=0)
    constant = (largest - smallest <= rounding) | (deviations == 0)  # squares of the smallest numbers are 0
    means = np.where(constant, smallest, known.mean(axis=0))
    with np.errstate(over="ignore"):
        scaled: NDArray[np.float32] = ((values - means) / np.where(constant, 1, deviations)).astype(np.float32)
    return scaled
