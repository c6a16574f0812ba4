"""Labels that come as text, beside somebody's own data: coded, and split into who trains and who tests."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Within, check_within
from fedfacet.data.dataset import Dataset, InputStore
from fedfacet.data.entries import (
    Place,
    alike,
    check_entries,
    check_spellings,
    check_visible,
    first_rows,
    is_missing,
    is_number,
    listed,
    ordered,
    shown,
    too_many,
    trimmed,
)
from fedfacet.data.source import DatasetSource
from fedfacet.errors import ConfigError, DatasetCorruptError

log = logging.getLogger(__name__)

SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}
"""What splits are called -> 0 for training, 1 for validation, 2 for the test."""

_REMEDY = "leave the sample out"


class Labels(NamedTuple):
    """What a data set is told of its samples besides their inputs; fields as in ``Dataset``."""

    y: NDArray[np.int64]
    a: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    val: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    columns: Mapping[str, NDArray[np.integer[Any]]]

    def dataset(self, inputs: InputStore, **statistics: Any) -> Dataset:
        """Return the data set of the samples' inputs; images have a ``mean`` and a ``std``."""
        return Dataset(inputs, **self._asdict(), **statistics)


@dataclass(eq=False, kw_only=True)
class LabelledData(DatasetSource):
    """Somebody's own data, whose labels are columns of text.

    Args:
        root: the folder that holds the data.
        target: the column that is the class.
        attribute: the one that is the attribute; ``None`` means the one called ``attribute``, or none.
        test_fraction: of every (class, attribute) group that tests where nothing says who does, in (0, 1).
        seed: of the draw of the test set; it does not follow the run's seed.
    """

    root: str | Path
    target: str = "class"
    attribute: str | None = None
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.2
    seed: int = 0

    def read_labels(
        self,
        columns: Mapping[str, Sequence[str]],
        *,
        source: object,
        where: Place,
        split: str | None = None,
        further: Sequence[str] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Labels:
        """Code columns of text, and find out who trains and who tests.

        A column's values are numbered by size where they are numbers, and words after these in alphabetical order. Blanks
        around them do not count. What is missing in a column that is neither class, attribute nor split becomes -1: the sample
        belongs to no client, and the log says so.

        Args:
            columns: entries by name, each column of N.
            source: where the columns come from, for messages.
            where: a sample comes from.
            split: the column that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``.
            further: the columns, besides the attribute, that clients may be made of; ``None`` means all.
            names: all values of a column, in their order, where that is known; these are taken as they are.

        Raises:
            ConfigError: if a setting names a column that is not there.
            DatasetCorruptError: if a class, an attribute or a split is missing, unknown or has two spellings, if there are too
                many of them, if no sample trains on a class, or if a group is too small to split.
        """
        target = self.target
        if target not in columns:
            raise ConfigError(_no_column("target", target, columns, source))
        attribute = _column("attribute", self.attribute, target, columns, source)
        split = _column("split", split, target, columns, source)
        if target in (attribute, split) or (attribute is not None and attribute == split):
            raise ConfigError(
                f"Expected `dataset.target`, `attribute` and `split` to name different columns of {source}, but got "
                f"{target!r}, {attribute!r} and {split!r}: choose another column."
            )
        known = names or {}
        y, class_names = _coded(target, columns[target], where, known.get(target))
        a, values = np.zeros_like(y), tuple[str, ...](["none"])
        if attribute is not None:
            a, values = _coded(attribute, columns[attribute], where, known.get(attribute))
        if split is not None:
            train, val, test = _given(split, columns[split], source, where)
        else:
            groups = y * len(values) + a
            _check_no_single(groups, y, a, class_names, values if attribute is not None else None, where)
            (train, test), val = split_groups(groups, self.test_fraction, self.seed), None
        measured = test if val is None else np.concatenate([test, val])
        if (fault := fault_of_classes(y[train], y[measured], class_names)) is not None:
            raise DatasetCorruptError(f"In the column {target!r} of {source}: {fault}")
        warn_of_attributes(a[train], a[measured], values)
        kept = columns.keys() if further is None else {*further, attribute}
        owners = {
            name: owners_of(name, columns[name], where, known.get(name))
            for name in columns
            if name in kept and name not in (target, split)
        }
        return Labels(y, a, train, test, val, class_names, values, owners)


def fault_of_classes(train: NDArray[np.int64], measured: NDArray[np.int64], names: Sequence[str]) -> str | None:
    """Return what is wrong with classes that some samples measure and none trains; ``None`` if nothing is."""
    if not len(unlearnt := np.setdiff1d(measured, train)):
        return None
    return (
        "Expected samples to train on of every class that is tested or validated, but there are none of "
        f"{listed(unlearnt, names)}: correct the names, leave these samples out, or let some of them train."
    )


def warn_of_attributes(train: NDArray[np.int64], measured: NDArray[np.int64], names: Sequence[str]) -> None:
    """Say in the log which attribute values no sample trains on: how a model does on an unseen group may be the question."""
    if len(unseen := np.setdiff1d(measured, train)):
        log.warning("No sample trains on these attribute values of the test or validation set: %s.", listed(unseen, names))


def owners_of(name: str, entries: Sequence[str], where: Place, names: Sequence[str] | None = None) -> NDArray[np.int64]:
    """Return the number of the value of every sample; -1, as the log says, where it is missing.

    Values that are spellings of one stay apart, because identifiers may differ in case; the log names two of them.

    Example:
        >>> owners_of("hospital", ["10", "9", "", "9"], "sample {}".format)
        array([ 1,  0, -1,  0])
    """
    texts = [trimmed(entry) for entry in entries]
    rows = first_rows(texts)
    values = [value for value in rows if not is_missing(value)] if names is None else [*names]
    if names is None:
        check_visible(name, {value: rows[value] for value in values}, where)
        if (pair := alike(values)) is not None:
            found = shown(name), *map(shown, pair), where(rows[pair[0]]), where(rows[pair[1]])
            log.warning("The column %s has %s and %s, which count as two: %s, %s.", *found)
        values = ordered(values)
    codes = _positions(texts, values)
    if len(lacking := np.flatnonzero(codes < 0)):
        found = where(int(lacking[0])), shown(texts[lacking[0]])
        log.warning("%d samples belong to no client by the column %s, the first in %s: %s.", len(lacking), shown(name), *found)
    return codes


def split_groups(groups: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted positions for training and for the test, which has the same share of every group.

    Raises:
        ValueError: if the share is out of range, or a group has one sample.
    """
    check_within("test", share, "(0, 1)")
    draw = rng.stream(seed, "test-split")
    tested = []
    for group in np.unique(groups):
        members = draw.permutation(np.flatnonzero(groups == group))
        if len(members) < 2:
            raise ValueError(
                "Expected at least two samples of every (class, attribute) group, one to train on and one to test with, but a "
                "group has one: leave it out, or say yourself who tests."
            )
        tested.append(members[: min(max(1, round(share * len(members))), len(members) - 1)])
    test = np.sort(np.concatenate(tested))
    return np.setdiff1d(np.arange(len(groups)), test, assume_unique=True), test


def hold_out(
    y: NDArray[np.int64], a: NDArray[np.int64] | None, fraction: float, seed: int, purpose: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw ``round(fraction * n)`` of the n samples of every (class, attribute) cell.

    ``y`` and ``a`` have the shape (N,); without ``a`` all have the attribute 0. Draws are ``rng.stream(seed, purpose, label,
    attribute)``. Returned are the sorted positions that are left, and those that were drawn.
    """
    cells = np.stack([y, np.zeros_like(y) if a is None else a], axis=1)
    held = np.zeros(len(y), dtype=bool)
    for cell in np.unique(cells, axis=0):
        members = np.flatnonzero((cells == cell).all(axis=1))
        order = rng.stream(seed, purpose, *cell.tolist()).permutation(members)
        held[order[: round(fraction * len(members))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _column(setting: str, name: str | None, target: str, columns: Mapping[str, Sequence[str]], source: object) -> str | None:
    """Return a column's name, checked; the one called as the setting is where none is given and there is one."""
    if name is None:
        return setting if setting in columns and setting != target else None
    if name not in columns:
        raise ConfigError(_no_column(setting, name, columns, source))
    return name


def _no_column(setting: str, name: str, columns: Mapping[str, Sequence[str]], source: object) -> str:
    return f"Expected `dataset.{setting}` to name a column of {source}, but got {name!r}: choose one of {', '.join(columns)}."


def _coded(
    name: str, entries: Sequence[str], where: Place, names: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    texts = [trimmed(entry) for entry in entries] if names is None else entries
    rows = first_rows(texts)
    if names is not None:
        check_entries(name, {"": rows[""]} if "" in rows else {}, where, _REMEDY)
        return _positions(texts, names), tuple(names)
    check_entries(name, rows, where, _REMEDY)
    check_spellings(name, rows, where)
    values = ordered(rows)
    if is_number(values[0]) and not is_number(values[-1]):
        log.warning("The column %s has numbers and words, %s and %s among them.", *map(shown, (name, values[0], values[-1])))
    if too_many(values, len(texts)):
        raise DatasetCorruptError(
            f"Expected {name!r} to have a few values that many samples share, but it has {len(values)} in {len(texts)} "
            f"samples, {shown(texts[0])} in {where(0)} among them: choose another column, or put ranges in place of numbers."
        )
    return _positions(texts, values), tuple(values)


def _check_no_single(
    groups: NDArray[np.int64],
    y: NDArray[np.int64],
    a: NDArray[np.int64],
    class_names: Sequence[str],
    attribute_names: Sequence[str] | None,
    where: Place,
) -> None:
    """Refuse a group of one sample by its number and its names; often its label is a slip of the pen."""
    _, first, counts = np.unique(groups, return_index=True, return_counts=True)
    if (counts > 1).all():
        return
    sample = int(first[counts == 1].min())
    names = [class_names[y[sample]], *([attribute_names[a[sample]]] if attribute_names else [])]
    raise DatasetCorruptError(
        "Expected at least two samples of every (class, attribute) group, one to train on and one to test with, but "
        f"{where(sample)} is the only one of {', '.join(map(shown, names))}: correct it, leave it out, or say yourself who "
        "tests."
    )


def _positions(entries: Sequence[str], values: Sequence[str]) -> NDArray[np.int64]:
    known = {value: position for position, value in enumerate(values)}
    return np.array([known.get(entry, -1) for entry in entries], dtype=np.int64)


def _given(
    name: str, entries: Sequence[str], source: object, where: Place
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return the sorted positions of training, validation (``None`` where nobody validates) and test samples."""
    texts = [trimmed(entry).lower() for entry in entries]
    if (wrong := next((row for row, text in enumerate(texts) if text not in SPLITS), None)) is not None:
        raise DatasetCorruptError(
            f"Expected every sample to have train, val or test as its {name!r}, but {where(wrong)} has "
            f"{shown(entries[wrong])}: correct it."
        )
    codes = np.array([SPLITS[text] for text in texts], dtype=np.int64)
    train, val, test = (np.flatnonzero(codes == code) for code in range(3))
    if not len(train) or not len(test):
        raise DatasetCorruptError(
            f"Expected samples that train and samples that test in {source}, but {name!r} gives {len(train)} and {len(test)}: "
            "correct it, or leave that column out, so that `dataset.test_fraction` decides."
        )
    return train, val if len(val) else None, test
