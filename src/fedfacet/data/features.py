"""What a model is given of a table's columns: numbers, dates as days, and words as zeros and ones."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.dates import days_of
from fedfacet.data.entries import (
    check_entries,
    check_spellings,
    check_visible,
    first_rows,
    is_missing,
    is_number,
    listed,
    resembles_number,
    shown,
    too_many,
)
from fedfacet.data.tables import Table, one_hot, standardised
from fedfacet.errors import DatasetCorruptError

log = logging.getLogger(__name__)

MOST_CATEGORIES = 100
"""Of a column that is an input: one with more is rather a name."""

FILLS = ("mean", "median", "indicator")
"""What may replace the missing values of an input; see ``Csv``."""

_FEW = 20  # rows: of fewer, whole numbers may all differ by chance


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """A column that is an input, as it was read.

    Attributes:
        table: that has it.
        name: of the column.
        kind: ``"numbers"``, ``"days"`` or ``"words"``.
        values: numbers, NaN where a value is missing, or positions among the ``words``, -1 where it is missing; shape (N,).
        words: all that the column has, of the kind ``"words"``.
    """

    table: Table
    name: str
    kind: str
    values: NDArray[np.float64] | NDArray[np.int64]
    words: Sequence[str] = field(default=())

    @property
    def lacking(self) -> NDArray[np.bool_]:
        """Which rows have no value, shape (N,)."""
        return self.values < 0 if self.kind == "words" else np.isnan(self.values)

    def inputs(self, train: NDArray[np.int64], missing: str) -> NDArray[np.float32]:
        """Return what a model is given, shape (N, D); only the rows ``train`` say what replaces a missing value, and the scale.

        Raises:
            DatasetCorruptError: if none of these rows has a value, or a number is too far from theirs.
        """
        lacking = self.lacking
        if self.kind == "words":
            count = len(self.words) + (missing == "indicator" and bool(lacking.any()))
            return one_hot(np.where(lacking, len(self.words), self.values).astype(np.int64), count)
        values = self.values
        if lacking.any():
            known = values[train][~lacking[train]]
            if not len(known):
                raise DatasetCorruptError(
                    f"Expected a value of {self.name!r} in some row of {self.table.path} that trains, but all lack one: leave "
                    f"the column out, {drop(self.name)}."
                )
            values = np.where(lacking, np.median(known) if missing == "median" else known.mean(), values)
        scaled = standardised(values[:, None], train)
        if not np.isfinite(scaled).all():
            row = int(np.argmin(np.isfinite(scaled[:, 0])))
            raise DatasetCorruptError(
                f"Expected numbers of one scale in the column {self.name!r} of {self.table.path}, but {self.table.place(row)} "
                f"has {shown(self.table.columns[self.name][row])}, too far from the rows that train: {self.table.remedy}."
            )
        return np.hstack([scaled, lacking[:, None].astype(np.float32)]) if missing == "indicator" and lacking.any() else scaled

    def warn_of_unseen(self, train: NDArray[np.int64]) -> None:
        """Name in the log the words that no row ``train`` has."""
        if self.kind == "words" and len(unseen := np.setdiff1d(self.values[self.values >= 0], self.values[train])):
            words = listed(unseen.astype(np.int64), self.words)
            log.warning("No row of %s trains on these words of %s: %s.", self.table.path, shown(self.name), words)


def feature_of(table: Table, name: str, *, kind: str | None, missing: str) -> Feature:
    """Read a column that is an input.

    Args:
        table: that has it.
        name: of the column.
        kind: ``"numbers"`` or ``"words"`` where the user says so.
        missing: as ``Csv.missing``.

    Raises:
        DatasetCorruptError: naming the column and the row, if an entry is missing and may not be, or is of another kind than
            others; or if there are too many words.
    """
    rows = first_rows(table.columns[name])
    if missing in FILLS:
        rows = {entry: row for entry, row in rows.items() if not is_missing(entry)}
        check_visible(name, rows, table.place)
        if not rows:
            raise DatasetCorruptError(
                f"The column {name!r} of {table.path} has no value in any row: leave it out, {drop(name)}."
            )
    else:
        fills = "`mean`, `median` or `indicator` fills them"
        remedy = f"leave out such rows, `dataset.missing=drop` ({fills}), or the column, {drop(name)}"
        check_entries(name, rows, table.place, remedy)
    if kind is None and not any(map(is_number, rows)) and (days := _days(table, name, rows)) is not None:
        return Feature(table, name, "days", _looked_up(table, name, days))
    if kind == "numbers" or (kind is None and any(map(is_number, rows))):
        return Feature(table, name, "numbers", _numbers(table, name, rows, sure=kind is not None))
    return _words(table, name, rows, sure=kind is not None)


def numbers_of(table: Table, name: str, rows: Mapping[str, int] | None = None) -> NDArray[np.float64]:
    """Return a column of numbers, shape (N,); NaN of an entry that is not among the ``rows``, if they are given.

    Raises:
        DatasetCorruptError: if an entry is none, or one that float32 cannot hold.
    """
    rows = first_rows(table.columns[name]) if rows is None else rows
    if (wrong := next((entry for entry in rows if not is_number(entry)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected a number in every line of the column `{name}` of {table.path}, but got {shown(wrong)} in "
            f"{table.unit} {table.lines[rows[wrong]]}: {table.remedy}."
        )
    if (huge := next((entry for entry in rows if abs(float(entry)) > float(np.finfo(np.float32).max)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected numbers that float32 can hold in the column `{name}` of {table.path}, but got {shown(huge)} in "
            f"{table.unit} {table.lines[rows[huge]]}: {table.remedy}."
        )
    return _looked_up(table, name, {entry: float(entry) for entry in rows})


def told_of(features: Sequence[Feature], missing: str) -> str:
    """Return in one line how each column was read.

    Example:
        >>> from pathlib import Path
        >>> table = Table(Path("people.csv"), "correct it", [2, 3], {}, False)
        >>> age, bmi = (
        ...     Feature(table, name, "numbers", np.array([1.0, lacks])) for name, lacks in (("age", 2), ("bmi", np.nan))
        ... )
        >>> told_of([age, Feature(table, "smoker", "words", np.array([0, 1]), ("no", "yes")), bmi], "mean")
        'age, bmi numbers; smoker 2 words; 1 value of bmi missing, filled by the mean'
    """
    of_kind: dict[str, list[str]] = {}
    for feature in features:
        of_kind.setdefault(feature.kind, []).append(
            f"{feature.name} {len(feature.words)}" if feature.kind == "words" else feature.name
        )
    lines = [f"{', '.join(of_kind[kind])} {kind}" for kind in ("numbers", "days", "words") if kind in of_kind]
    lacking = {feature.name: int(feature.lacking.sum()) for feature in features if feature.lacking.any()}
    if lacking:
        numbers = ", ".join(f"{number} {'value' if number == 1 else 'values'} of {name}" for name, number in lacking.items())
        lines.append(f"{numbers} missing, filled by the {'mean and marked' if missing == 'indicator' else missing}")
    return "; ".join(lines)


def drop(name: str) -> str:
    """Return the option that leaves a column out, as an error names it."""
    return f"`dataset.drop=[{name}]`"


def _looked_up(table: Table, name: str, values: Mapping[str, float]) -> NDArray[np.float64]:
    return np.array([values.get(entry, np.nan) for entry in table.columns[name]])


def _days(table: Table, name: str, rows: Mapping[str, int]) -> dict[str, float] | None:
    """Return the days of a column of dates; ``None`` if its entries are none."""
    forms = days_of(rows)
    if not forms:
        return None
    form, days = next(iter(forms.items()))
    if odd := next((entry for entry in rows if entry not in days), None):
        raise DatasetCorruptError(
            f"Expected dates such as {form} in the column {name!r} of {table.path}, but {table.place(rows[odd])} has "
            f"{shown(odd)}: correct it, or give `dataset.words=[{name}]` or {drop(name)}."
        )
    if other := next((one for one, read in forms.items() if read != days), None):
        raise DatasetCorruptError(
            f"The dates in the column {name!r} of {table.path}, such as {shown(next(iter(rows)))} in "
            f"{table.place(next(iter(rows.values())))}, could be {form} or {other}: write YYYY-MM-DD, or give {drop(name)}."
        )
    return days


def _numbers(table: Table, name: str, rows: Mapping[str, int], *, sure: bool) -> NDArray[np.float64]:
    if not sure and not all(map(is_number, rows)):
        entries = table.columns[name]
        present = np.array([entry in rows for entry in entries])
        numbers = np.array([is_number(entry) for entry in entries])
        rare = int(np.argmax(present & (numbers == (numbers.sum() < present.sum() / 2))))
        raise DatasetCorruptError(
            f"Expected numbers or words in the column {name!r} of {table.path}, but {numbers.sum():,} of {len(entries):,} are "
            f"numbers, and {table.unit} {table.lines[rare]} has {shown(entries[rare])}: correct it; `dataset.words=[{name}]` "
            f"takes all of it as words, and {drop(name)} leaves the column out."
        )
    read = numbers_of(table, name, rows)
    if sure:
        return read
    if (code := next((entry for entry in rows if entry[0] == "0" and entry[1:2].isdigit()), None)) is not None:
        told = *map(shown, (name, code)), name
        log.warning("The column %s is read as numbers, %s among them; dataset.words=[%s] takes words.", *told)
    elif len(rows) == len(read) > _FEW and (np.abs(np.diff(np.sort(read))) == 1).all():
        log.warning(
            "The column %s is read as numbers and counts the rows: leave it out with dataset.drop=[%s], or confirm it with "
            "dataset.numbers=[%s].",
            *(shown(name), name, name),
        )
    return read


def _words(table: Table, name: str, rows: Mapping[str, int], *, sure: bool) -> Feature:
    entries, distinct = table.columns[name], sorted(rows)
    check_spellings(name, rows, table.place)
    if not sure and (odd := next((entry for entry in rows if resembles_number(entry)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected words or numbers in the column {name!r} of {table.path}, but {table.place(rows[odd])} has {shown(odd)}: "
            "write numbers with a decimal point and no other mark (or give `dataset.decimal=comma`), and dates as YYYY-MM-DD; "
            f"`dataset.words=[{name}]` takes it as words, and {drop(name)} leaves the column out."
        )
    if len(distinct) > MOST_CATEGORIES or (not sure and too_many(distinct, len(entries))):
        raise DatasetCorruptError(
            f"Expected numbers, or at most {MOST_CATEGORIES} words that many rows share, in the column {name!r} of "
            f"{table.path}, but it has {len(distinct)} words in {len(entries)} rows, {shown(entries[0])} in {table.place(0)} "
            f"among them: give {drop(name)}."
        )
    known = {word: position for position, word in enumerate(distinct)}
    codes = np.array([known.get(entry, -1) for entry in entries], dtype=np.int64)
    return Feature(table, name, "words", codes, tuple(distinct))
