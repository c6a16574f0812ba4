"""Your own table."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import (
    check_entries,
    check_spellings,
    first_rows,
    is_missing,
    is_number,
    listed,
    resembles_number,
    shown,
    too_many,
)
from fedfacet.data.generated import enough, write_lines
from fedfacet.data.labels import LabelledData
from fedfacet.data.source import located_inside
from fedfacet.data.tables import SEPARATORS, Table, header_of, one_hot, read_table, standardised, vectors
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

log = logging.getLogger(__name__)

MOST_CATEGORIES = 100
"""Of a column that is an input: one with more is rather a name."""


@dataclass(eq=False, kw_only=True)
class Csv(LabelledData):
    """The rows of a csv file, whose first line names the columns.

    A column of numbers is an input, less its mean over its standard deviation, both of the training rows. A column of words is
    an input for each of them, 1 where a row has it and else 0. One with numbers and words is refused, and so are missing values
    (an empty entry, ``NA``, ``N/A``, ``nan``, ``NULL``, ``None``, ``?``, ``-`` in any case), two spellings of one word, and
    numbers in another notation, such as ``1,5``, and dates. The class, the attribute, the split and the ``columns`` are no
    inputs. Clients may be made of any of these, and of the attribute: ``partition=natural partition.label=hospital``.

    Deviation: in a federation the clients would have to agree on mean and standard deviation, and would learn them of each
    other.

    Args:
        root: the folder that holds the file.
        file: its name.
        split: the one that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``. Without it
            ``test_fraction`` of every (class, attribute) group tests.
        columns: further columns that are no inputs.
        words: columns whose entries are words, even where they look like numbers or dates, such as codes.
        drop: columns that are not read at all.
        missing: ``refuse``, or ``drop`` for leaving out rows without a class, an attribute or an input.
        separator: of entries, ``comma``, ``semicolon``, ``tab`` or ``bar``.
    """

    file: str = "table.csv"
    split: str | None = None
    columns: Sequence[str] = ()
    words: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: Annotated[str, Choice("refuse", "drop")] = "refuse"
    separator: Annotated[str, Choice(*SEPARATORS)] = "comma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = located_inside(self.root, self.file, "file")

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write rows of two numbers and a word; see ``DatasetSource.generate``."""
        classes, values, per_group = enough(demand, self.test_fraction)
        draw = rng.stream(0, "generated-csv")
        labels = (self.target, self.attribute or "attribute", *self.columns)
        comma = SEPARATORS[self.separator]
        lines = [comma.join(("size", "weight", "kind", *labels))]
        for y, a in np.ndindex(classes, values):
            for number in range(per_group):
                size, weight = (y + draw.normal(0, 0.5), a + draw.normal(0, 0.5))
                owners = (f"{column} {number % 2}" for column in self.columns)
                entries = (f"{size:.4f}", f"{weight:.4f}", "ab"[draw.integers(2)], str(y), str(a), *owners)
                lines.append(comma.join(entries))
        write_lines(self.path, lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the rows; see ``DatasetSource.load``."""
        if not self.path.exists():
            raise DatasetNotFoundError(
                f"Expected a table at {self.path}, but there is no such file: give `dataset.root=DIR dataset.file=NAME`, or "
                "point FEDFACET_DATA at the folder that holds it."
            )
        table = self._read()
        labels = self.read_labels(table.columns, source=self.path, where=table.place, split=self.split, further=self.columns)
        features = [_features(table, name, labels.train, words=name in self.words) for name in self._inputs(table.columns)]
        if not features:
            raise ConfigError(
                f"Expected {self.path} to have columns that are inputs, but got no others than {', '.join(table.columns)}: "
                "take some out of `dataset.columns` or `dataset.drop`."
            )
        return labels.dataset(vectors(features))

    def _read(self) -> Table:
        """Return the columns that count, and the rows that do."""
        expected, remedy, separator = "a csv file", "correct the file", SEPARATORS[self.separator]
        header = header_of(self.path, expected=expected, remedy=remedy, separator=separator)
        for setting, names in (("columns", self.columns), ("words", self.words), ("drop", self.drop)):
            if unknown := [name for name in names if name not in header]:
                raise ConfigError(
                    f"Expected `dataset.{setting}` to name columns of {self.path}, but got {unknown[0]!r}: choose among "
                    f"{', '.join(header)}."
                )
        if both := [name for name in (*self.columns, *self.words) if name in self.drop]:
            raise ConfigError(
                f"Expected `dataset.drop` to name other columns than `columns` and `words`, but all have {both[0]!r}: take it "
                "out of one."
            )
        wanted = [name for name in header if name not in self.drop]
        table = read_table(self.path, wanted, expected=expected, remedy=remedy, separator=separator).trimmed
        if unlike := [name for name in self.words if name not in self._inputs(table.columns)]:
            raise ConfigError(
                f"Expected `dataset.words` to name columns that are inputs, but {unlike[0]!r} is none: take it out there."
            )
        return self._without_missing(table) if self.missing == "drop" else table

    def _inputs(self, columns: Iterable[str]) -> list[str]:
        beside = {self.target, self.attribute or "attribute", self.split or "split", *self.columns}
        return [name for name in columns if name not in beside]

    def _without_missing(self, table: Table) -> Table:
        """Return the rows that have all values but those of ``columns``, which only say whose a row is."""
        lacking = np.zeros(len(table), dtype=bool)
        for name, entries in table.columns.items():
            if name not in self.columns or name in (self.target, self.attribute or "attribute", self.split or "split"):
                words = {entry for entry in set(entries) if is_missing(entry)}
                lacking |= np.fromiter((entry in words for entry in entries), dtype=bool, count=len(entries))
        if lacking.all():
            raise DatasetCorruptError(
                f"Expected rows of {self.path} with all their values, but every row lacks one: leave columns out with "
                "`dataset.drop`."
            )
        if lacking.any():
            log.warning("Of %d rows of %s, %d lack a value and are left out.", len(table), self.path, lacking.sum())
        return table.rows(np.flatnonzero(~lacking))


def numbers_of(table: Table, name: str) -> NDArray[np.float64]:
    """Return a column of numbers, shape (N,).

    Raises:
        DatasetCorruptError: if an entry is none, or one that float32 cannot hold.
    """
    entries = table.columns[name]
    if (wrong := next((row for row, entry in enumerate(entries) if not is_number(entry)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected a number in every line of the column `{name}` of {table.path}, but got {shown(entries[wrong])} in line "
            f"{table.lines[wrong]}: {table.remedy}."
        )
    numbers = np.array([float(entry) for entry in entries])
    if np.abs(numbers).max() > np.finfo(np.float32).max:
        raise DatasetCorruptError(
            f"Expected numbers that float32 can hold in the column `{name}` of {table.path}, but got "
            f"{shown(entries[int(np.abs(numbers).argmax())])} in line {table.lines[int(np.abs(numbers).argmax())]}: "
            f"{table.remedy}."
        )
    return numbers


def _features(table: Table, name: str, train: NDArray[np.int64], *, words: bool) -> NDArray[np.float32]:
    """Return what a model is given of a column, shape (N, D)."""
    entries = table.columns[name]
    rows = first_rows(entries)
    check_entries(name, rows, table.place, f"leave out such rows, `dataset.missing=drop`, or the column, {_drop(name)}")
    if not words and any(map(is_number, rows)):
        return _scaled(table, name, rows, train)
    distinct = sorted(rows)
    check_spellings(name, rows, table.place)
    if not words and (odd := next((entry for entry in rows if resembles_number(entry)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected words or numbers in the column {name!r} of {table.path}, but {table.place(rows[odd])} has {shown(odd)}: "
            f"write numbers with a decimal point and no other mark, and dates as numbers; `dataset.words=[{name}]` takes it as "
            f"words, and {_drop(name)} leaves the column out."
        )
    if len(distinct) > MOST_CATEGORIES or (not words and too_many(distinct, len(entries))):
        raise DatasetCorruptError(
            f"Expected numbers, or at most {MOST_CATEGORIES} words that many rows share, in the column {name!r} of "
            f"{table.path}, but it has {len(distinct)} words in {len(entries)} rows, {shown(entries[0])} in {table.place(0)} "
            f"among them: leave the column out, {_drop(name)}."
        )
    codes = np.searchsorted(np.array(distinct), np.array(entries))
    if len(unseen := np.setdiff1d(codes, codes[train])):
        log.warning("No row of %s trains on these words of %s: %s.", table.path, shown(name), listed(unseen, distinct))
    return one_hot(codes, len(distinct))


def _scaled(table: Table, name: str, rows: Mapping[str, int], train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return numbers, standardised, shape (N, 1)."""
    entries = table.columns[name]
    if not all(map(is_number, rows)):
        numbers = np.array([is_number(entry) for entry in entries])
        rare = int(np.argmax(numbers == (numbers.mean() < 1 / 2)))
        raise DatasetCorruptError(
            f"Expected numbers or words in the column {name!r} of {table.path}, but {numbers.sum():,} of {len(entries):,} are "
            f"numbers, and line {table.lines[rare]} has {shown(entries[rare])}: correct it; `dataset.words=[{name}]` takes all "
            f"of it as words, and {_drop(name)} leaves the column out."
        )
    if (code := next((entry for entry in rows if entry[0] == "0" and entry[1:2].isdigit()), None)) is not None:
        log.warning(
            "The column %s is read as numbers, %s among them; dataset.words=[%s] takes words.", *map(shown, (name, code)), name
        )
    scaled = standardised(numbers_of(table, name)[:, None], train)
    if not np.isfinite(scaled).all():
        row = int(np.argmin(np.isfinite(scaled[:, 0])))
        raise DatasetCorruptError(
            f"Expected numbers of one scale in the column {name!r} of {table.path}, but {table.place(row)} has "
            f"{shown(entries[row])}, too far from the rows that train: {table.remedy}."
        )
    return scaled


def _drop(name: str) -> str:
    return f"`dataset.drop=[{name}]`"
