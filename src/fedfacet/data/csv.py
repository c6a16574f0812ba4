"""Your own table."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import enough, write_lines
from fedfacet.data.labels import read_labels
from fedfacet.data.source import DatasetSource, located_inside
from fedfacet.data.tables import Table, header_of, one_hot, read_table, standardised
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

MOST_CATEGORIES = 100
"""Of a column that is an input: one with more is rather a name, or numbers with a few other entries among them."""

MOSTLY_NUMBERS = 0.9
"""Share of a column's entries from which on those that are no numbers are slips of the pen."""

FEWEST_NUMBERS = 11
"""That a column of numbers has; fewer may be codes."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


@dataclass(eq=False, kw_only=True)
class Csv(DatasetSource):
    """The rows of a csv file, whose first line names the columns.

    A column of numbers is an input, less its mean over its standard deviation, both of the training rows. A column with other
    entries is an input for each of its values, 1 where a row has it and else 0; an empty entry is a value, too. One whose
    entries are nearly all numbers is refused. The class, the attribute, the split and the ``columns`` are no inputs. Clients
    may be made of any of these, and of the attribute: ``partition=natural partition.label=hospital``.

    Deviation: in a federation the clients would have to agree on mean and standard deviation, and would learn them of each
    other.

    Args:
        root: the folder that holds the file.
        file: its name.
        target: the column that is the class.
        attribute: the one that is the attribute; ``None`` means the one called ``attribute``, or none.
        split: the one that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``. Without it
            ``test_fraction`` of every (class, attribute) group tests.
        columns: further columns that are no inputs.
        drop: columns that are not read at all.
        test_fraction: in (0, 1).
        seed: of the draw of the test set; it does not follow the run's seed.
    """

    root: str | Path
    file: str = "table.csv"
    target: str = "class"
    attribute: str | None = None
    split: str | None = None
    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_within("dataset.test_fraction", self.test_fraction, "(0, 1)")
        self.path = located_inside(self.root, self.file, "file")

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write rows of two numbers and a word; see ``DatasetSource.generate``."""
        classes, values, per_group = enough(demand, self.test_fraction)
        draw = rng.stream(0, "generated-csv")
        labels = (self.target, self.attribute or "attribute", *self.columns)
        lines = [",".join(("size", "weight", "kind", *labels))]
        for y, a in np.ndindex(classes, values):
            for number in range(per_group):
                size, weight = (y + draw.normal(0, 0.5), a + draw.normal(0, 0.5))
                owners = (f"{column} {number % 2}" for column in self.columns)
                entries = (f"{size:.4f}", f"{weight:.4f}", "ab"[draw.integers(2)], str(y), str(a), *owners)
                lines.append(",".join(entries))
        write_lines(self.path, lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the rows; see ``DatasetSource.load``."""
        if not self.path.exists():
            raise DatasetNotFoundError(
                f"Expected a table at {self.path}, but there is no such file: give `dataset.root=DIR dataset.file=NAME`, or "
                "point FEDFACET_DATA at the folder that holds it."
            )
        expected, remedy = "a csv file", "correct the file"
        header = header_of(self.path, expected=expected, remedy=remedy)
        for setting, names in (("columns", self.columns), ("drop", self.drop)):
            if unknown := [name for name in names if name not in header]:
                raise ConfigError(
                    f"Expected `dataset.{setting}` to name columns of {self.path}, but got {unknown[0]!r}: choose among "
                    f"{', '.join(header)}."
                )
        wanted = [name for name in header if name not in self.drop]
        table = read_table(self.path, wanted, expected=expected, remedy=remedy)
        labels = read_labels(
            table.columns,
            target=self.target,
            attribute=self.attribute,
            split=self.split,
            test_fraction=self.test_fraction,
            seed=self.seed,
            source=self.path,
            further=self.columns,
        )
        beside = {self.target, self.attribute or "attribute", self.split or "split", *self.columns}
        features = [_features(table, name, labels.train) for name in wanted if name not in beside]
        if not features:
            raise ConfigError(
                f"Expected {self.path} to have columns that are inputs, but got no others than {', '.join(wanted)}: take some "
                "out of `dataset.columns` or `dataset.drop`."
            )
        inputs = InMemoryInputs(torch.from_numpy(np.concatenate(features, axis=1)))
        return Dataset(
            *(inputs, labels.y, labels.a, labels.train, labels.test, labels.val, labels.class_names, labels.attribute_names),
            columns=labels.columns,
        )


def numbers_of(table: Table, name: str) -> NDArray[np.float64]:
    """Return a column of numbers, shape (N,).

    Raises:
        DatasetCorruptError: if an entry is none, or one that float32 cannot hold.
    """
    entries = table.columns[name]
    if (wrong := next((row for row, entry in enumerate(entries) if not _NUMBER.fullmatch(entry)), None)) is not None:
        raise DatasetCorruptError(
            f"Expected a number in every line of the column `{name}` of {table.path}, but got {entries[wrong][:40]!r} in line "
            f"{table.lines[wrong]}: {table.remedy}."
        )
    numbers = np.array([float(entry) for entry in entries])
    if np.abs(numbers).max() > np.finfo(np.float32).max:
        raise DatasetCorruptError(
            f"Expected numbers that float32 can hold in the column `{name}` of {table.path}, but got "
            f"{entries[int(np.abs(numbers).argmax())][:40]}: {table.remedy}."
        )
    return numbers


def _features(table: Table, name: str, train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what a model is given of a column, shape (N, D)."""
    entries = table.columns[name]
    distinct = sorted(set(entries))
    others = [entry for entry in distinct if not _NUMBER.fullmatch(entry)]
    if not others:
        return standardised(numbers_of(table, name)[:, None], train)
    counts = Counter(entries)
    num_numbers = len(entries) - sum(counts[entry] for entry in others)
    slips = num_numbers >= MOSTLY_NUMBERS * len(entries) and len(distinct) - len(others) >= FEWEST_NUMBERS
    if slips or len(distinct) > MOST_CATEGORIES or others == [""]:
        line, entry = next(
            (line, entry) for line, entry in zip(table.lines, entries, strict=True) if not _NUMBER.fullmatch(entry)
        )
        expected = f"Expected a number in every line of the column `{name}` of {table.path}"
        told = f"{entry[:40]!r} in line {line}"
        remedy = f"correct it, or leave the column out, `dataset.drop=[{name}]`"
        if slips:
            raise DatasetCorruptError(
                f"{expected}, as in {num_numbers:,} of {len(entries):,}, but got {told}: {remedy}; if these are codes of "
                "categories, put a letter before each."
            )
        raise DatasetCorruptError(
            f"{expected}, or at most {MOST_CATEGORIES} different entries, but it has {len(distinct)}, {told} among them: "
            f"{remedy}."
        )
    return one_hot(np.searchsorted(np.array(distinct), np.array(entries)), len(distinct))
