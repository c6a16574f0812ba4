"""Your own table."""

import codecs
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice
from fedfacet.data.bins import check_edges, names_of_ranges, suggested
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.dialect import SEPARATORS, encoding_of, has_decimal_commas, separator_of, with_points
from fedfacet.data.entries import first_rows, is_missing, is_number, shown, too_many, visible
from fedfacet.data.features import FILLS, feature_of, numbers_of, told_of
from fedfacet.data.generated import enough, write_lines
from fedfacet.data.labels import LabelledData
from fedfacet.data.reading import reading
from fedfacet.data.source import located_inside
from fedfacet.data.tables import Table, header_of, read_table, vectors
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

log = logging.getLogger(__name__)

MOST_VALUES = 20
"""Of an attribute of numbers: one with more is rather an amount, of which ranges make groups."""


@dataclass(eq=False, kw_only=True)
class Csv(LabelledData):
    """The rows of a csv file, whose first line names the columns.

    A column of numbers is an input, less its mean over its standard deviation, both of the training rows. A column of dates is
    one too, as days. A column of words is an input for each of them, 1 where a row has it and else 0. The log and
    ``partition.json`` say how each column was read. A column with numbers and words fails, and so do two spellings of one
    word, and numbers in another notation, such as ``1_000``. Missing values are an empty entry, ``NA``, ``N/A``, ``nan``,
    ``NULL``, ``None``, ``?`` and ``-``, in any case. The class, the attribute, the split and the ``columns`` are no inputs.
    Clients may be made of any of these, and of the attribute: ``partition=natural partition.label=hospital``.

    Deviation: in a federation the clients would have to agree on mean and standard deviation, and would learn them of each
    other.

    Args:
        root: the folder that holds the file.
        file: its name.
        split: the one that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``. Without it
            ``test_fraction`` of every (class, attribute) group tests.
        columns: further columns that are no inputs.
        numbers: columns that must be numbers; a log line about numbers that may be names is left out for them.
        words: columns whose entries are words, even where they look like numbers or dates, such as codes.
        bins: edges of ranges that replace a column's numbers. ``{age: [40, 60]}`` makes ``age<40``, ``40-59`` and ``60+``; the
            lower edge belongs to a range.
        drop: columns that are not read at all.
        missing: ``refuse``, ``drop`` for leaving out rows without a class, an attribute or an input, or what replaces a missing
            input. ``mean`` and ``median`` are those of the rows that clients train on. A missing word has zeros for all words
            of its column. ``indicator`` is ``mean``, and a further input marks what was missing.
        separator: of entries, ``comma``, ``semicolon``, ``tab`` or ``bar``; ``None`` for the one that line 1 has.
        decimal: mark of numbers, ``point`` or ``comma``; ``None`` for commas where they can mean nothing else.
        encoding: as Python calls it; ``None`` for UTF-8, UTF-16 with its mark, or Windows-1252 (with Latin-1) if all fits.
    """

    file: str = "table.csv"
    split: str | None = None
    columns: Sequence[str] = ()
    numbers: Sequence[str] = ()
    words: Sequence[str] = ()
    bins: Mapping[str, Sequence[float]] = field(default_factory=dict)
    drop: Sequence[str] = ()
    missing: Annotated[str, Choice("refuse", "drop", *FILLS)] = "refuse"
    separator: Annotated[str | None, Choice(*SEPARATORS)] = None
    decimal: Annotated[str | None, Choice("point", "comma")] = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = located_inside(self.root, self.file, "file")
        for name, edges in self.bins.items():
            check_edges(name, edges)
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise ConfigError(
                f"Expected `dataset.encoding` to be one that Python knows, such as cp1250, but got {self.encoding!r}: fix it."
            ) from None

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write rows of two numbers and a word; see ``DatasetSource.generate``."""
        classes, values, per_group = enough(demand, self.test_fraction)
        draw = rng.stream(0, "generated-csv")
        labels = (self.target, self.attribute or "attribute", *self.columns)
        comma = SEPARATORS[self.separator or "comma"]
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
        return self.dataset_of(self._read())

    def dataset_of(self, table: Table, known: Mapping[str, Sequence[str]] | None = None) -> Dataset:
        """Return the data set of a table that was read, without the columns to drop.

        Args:
            table: of the file.
            known: columns of words -> these, in their order.

        Raises:
            ConfigError, DatasetCorruptError: as ``load``.
        """
        self._check_columns(table)
        table = self._without_missing(table) if self.missing == "drop" else table
        table, ranges = self._binned(table)
        names = {**(known or {}), **ranges}
        self._check_few(table, names)
        labels = self.read_labels(
            *(table.columns,), source=table.path, where=table.place, split=self.split, further=self.columns, names=names
        )
        kinds = dict.fromkeys(self.numbers, "numbers") | dict.fromkeys([*self.words, *names], "words")
        read = [feature_of(table, name, kind=kinds.get(name), missing=self.missing) for name in self._inputs(table.columns)]
        if not read:
            raise ConfigError(
                f"Expected {table.path} to have columns that are inputs, but got no others than {', '.join(table.columns)}: "
                "take some out of `dataset.columns` or `dataset.drop`."
            )
        for feature in read:
            feature.warn_of_unseen(labels.train)

        def fit(train: NDArray[np.int64]) -> InMemoryInputs:
            return vectors([feature.inputs(train, self.missing) for feature in read])

        lacking = any(feature.lacking.any() for feature in read)
        return labels.dataset(fit(labels.train), inputs_read=told_of(read, self.missing), fit=fit if lacking else None)

    def _read(self) -> Table:
        """Return the columns of the file that count."""
        told = {"expected": "a csv file", "remedy": "correct the file"}
        with reading(self.path, **told):
            encoding = self.encoding or encoding_of(self.path)
        if self.encoding is None and encoding == "cp1252":
            log.warning("%s is read as Windows-1252; dataset.encoding=NAME reads another encoding.", visible(self.path))
        separator = SEPARATORS[self.separator or separator_of(self.path, encoding, **told)]
        how: dict[str, Any] = told | {"encoding": encoding, "separator": separator}
        header = header_of(self.path, **how)
        self.check_names(header, self.path)
        table = read_table(self.path, [name for name in header if name not in self.drop], **how).trimmed
        inputs = [name for name in self._inputs(header) if name not in self.words]
        amounts = [name for name in table.columns if name in inputs or name in self.bins]
        entries = (entry for name in amounts for entry in table.columns[name])
        if self.decimal == "comma" or (self.decimal is None and separator != "," and has_decimal_commas(entries)):
            return replace(table, columns=table.columns | {name: with_points(table.columns[name]) for name in amounts})
        return table

    def check_names(self, names: Sequence[str], source: Path) -> None:
        """Refuse settings that name other columns than those of a table, and names that are not each of one column."""
        if "" in names or len({*names}) < len(names):
            raise DatasetCorruptError(
                f"Expected {source} to name every column, each once, but got {', '.join(names)[:200]}: rename them."
            )
        for setting in ("columns", "numbers", "words", "bins", "drop"):
            if isinstance(name := getattr(self, setting), str):
                raise ConfigError(f"Expected `dataset.{setting}` to be a list of columns, but got {name!r}: write [{name}].")
            if unknown := [name for name in getattr(self, setting) if name not in names]:
                raise ConfigError(
                    f"Expected `dataset.{setting}` to name columns of {source}, but got {unknown[0]!r}: choose among "
                    f"{', '.join(names)}."
                )

    def _check_columns(self, table: Table) -> None:
        """Refuse settings that contradict one another."""
        if both := [name for name in (*self.columns, *self.numbers, *self.words, *self.bins) if name in self.drop]:
            raise ConfigError(
                f"Expected `dataset.drop` to name columns that no other setting names, but {both[0]!r} is named twice: take it "
                "out of one."
            )
        kinds = [*self.numbers, *self.words, *self.bins]
        if twice := [name for name in kinds if kinds.count(name) > 1]:
            raise ConfigError(
                f"Expected a column in one of `dataset.numbers`, `words` and `bins`, but {twice[0]!r} is in two: take it out "
                "of one."
            )
        inputs = self._inputs(table.columns)
        usable = {"numbers": inputs, "words": [*inputs, *filter(None, [self.attribute])]}
        for setting, known in usable.items():
            if unlike := [name for name in getattr(self, setting) if name not in known]:
                raise ConfigError(
                    f"Expected `dataset.{setting}` to name columns that are inputs, but {unlike[0]!r} is none: take it out "
                    "there."
                )

    def _inputs(self, columns: Iterable[str]) -> list[str]:
        beside = {self.target, self.attribute or "attribute", self.split or "split", *self.columns}
        return [name for name in columns if name not in beside]

    def _binned(self, table: Table) -> tuple[Table, dict[str, list[str]]]:
        """Return the table with ranges instead of numbers, and the ranges of each column in their order."""
        columns, names = dict(table.columns), {}
        for name, edges in self.bins.items():
            entries = columns[name]
            rows = {entry: row for entry, row in first_rows(entries).items() if not is_missing(entry)}
            numbers = numbers_of(table, name, rows)
            known = ~np.isnan(numbers)
            ranges = names_of_ranges(name, edges, whole=bool((numbers[known] % 1 == 0).all()))
            places = np.searchsorted(np.asarray(edges, dtype=np.float64), numbers, side="right").tolist()
            columns[name] = [ranges[place] if there else "" for place, there in zip(places, known.tolist(), strict=True)]
            names[name] = [one for one in ranges if one in set(columns[name])]
        return replace(table, columns=columns), names

    def _check_few(self, table: Table, known: Iterable[str]) -> None:
        """Refuse a class or an attribute of many numbers, which ranges would make a few groups of."""
        attribute = self.attribute or "attribute"
        for name in (self.target, attribute):
            rows = first_rows(table.columns.get(name, ()))
            present = [entry for entry in rows if not is_missing(entry)]
            if not present or not all(map(is_number, present)) or name in (*self.words, *known):
                continue
            if (name == attribute and len(present) > MOST_VALUES) or too_many(present, len(table)):
                numbers = np.array(list(map(float, filter(is_number, table.columns[name]))))
                raise DatasetCorruptError(
                    f"Expected {name!r} to have a few values, but it has {len(present)} numbers in {len(table)} rows, first "
                    f"{shown(present[0])} in {table.place(rows[present[0]])}: give ranges, such as "
                    f"`dataset.bins.{name}={suggested(numbers)}`."
                )

    def _without_missing(self, table: Table) -> Table:
        """Return the rows that have all values but those of ``columns``, which only say whose a row is."""
        lacking = np.zeros(len(table), dtype=bool)
        for name, entries in table.columns.items():
            if name not in self.columns or name in (self.target, self.attribute or "attribute", self.split or "split"):
                words = {entry for entry in set(entries) if is_missing(entry)}
                lacking |= np.fromiter((entry in words for entry in entries), dtype=bool, count=len(entries))
        if lacking.all():
            raise DatasetCorruptError(
                f"Expected rows of {table.path} with all their values, but every row lacks one: leave columns out with "
                "`dataset.drop`."
            )
        if lacking.any():
            log.warning("Of %d rows of %s, %d lack a value and are left out.", len(table), table.path, lacking.sum())
        return table.rows(np.flatnonzero(~lacking))
