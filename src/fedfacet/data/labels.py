"""Labels that come as text, beside somebody's own data: coded, and split into who trains and who tests."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.errors import ConfigError, DatasetCorruptError

SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}
"""What splits are called -> 0 for training, 1 for validation, 2 for the test."""


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


def read_labels(
    columns: Mapping[str, Sequence[str]],
    *,
    target: str,
    attribute: str | None,
    split: str | None,
    test_fraction: float,
    seed: int,
    source: object,
    further: Sequence[str] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Labels:
    """Code columns of text, and find out who trains and who tests.

    A column's values are numbered in alphabetical order, or by size where all are whole numbers. An empty entry of a column
    that is neither class, attribute nor split becomes -1: the sample belongs to nobody.

    Args:
        columns: entries by name, each column of N.
        target: the column that is the class.
        attribute: the column that is the attribute; ``None`` means the one called ``attribute``, or none.
        split: the column that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``. Without such a
            column ``test_fraction`` of every (class, attribute) group tests, drawn by ``seed``.
        test_fraction: in (0, 1); rounded, at least one sample of each group.
        seed: of that draw.
        source: where the columns come from, for messages.
        further: the columns, besides the attribute, that clients may be made of; ``None`` means all.
        names: all values of a column, in their order, where that is known.

    Raises:
        ConfigError: if a setting names a column that is not there.
        DatasetCorruptError: if a class, an attribute or a split is empty or unknown, or a group is too small to split.

    Example:
        >>> rows = {"pet": ["dog", "cat", "dog", "cat"], "split": ["train", "train", "test", "test"]}
        >>> labels = read_labels(rows, target="pet", attribute=None, split=None, test_fraction=0.2, seed=0, source="rows")
        >>> labels.class_names, labels.y, labels.test
        (('cat', 'dog'), array([1, 0, 1, 0]), array([2, 3]))
    """
    check_within("dataset.test_fraction", test_fraction, "(0, 1)")
    attribute = _column("attribute", attribute, columns, source)
    split = _column("split", split, columns, source)
    if target not in columns:
        raise ConfigError(_missing("target", target, columns, source))
    known = names or {}
    y, class_names = _coded(target, columns[target], source, known.get(target))
    a, values = np.zeros_like(y), tuple[str, ...](["none"])
    if attribute is not None:
        a, values = _coded(attribute, columns[attribute], source, known.get(attribute))
    if split is not None:
        train, val, test = _given(split, columns[split], source)
    else:
        groups = y * len(values) + a
        _check_no_single(groups, y, a, class_names, values if attribute is not None else None, source)
        (train, test), val = split_groups(groups, test_fraction, seed), None
    kept = columns.keys() if further is None else {*further, attribute}
    owners = {name: _owners(columns[name], known.get(name)) for name in columns if name in kept and name not in (target, split)}
    return Labels(y, a, train, test, val, class_names, values, owners)


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


def _column(setting: str, name: str | None, columns: Mapping[str, Sequence[str]], source: object) -> str | None:
    """Return a column's name, checked; the one called as the setting is where none is given and there is one."""
    if name is None:
        return setting if setting in columns else None
    if name not in columns:
        raise ConfigError(_missing(setting, name, columns, source))
    return name


def _missing(setting: str, name: str, columns: Mapping[str, Sequence[str]], source: object) -> str:
    return f"Expected `dataset.{setting}` to name a column of {source}, but got {name!r}: choose one of {', '.join(columns)}."


def _sorted(values: set[str]) -> list[str]:
    digits = [value.removeprefix("-") for value in values]
    whole = all(text.isascii() and text.isdigit() for text in digits)
    return sorted(values, key=lambda value: (int(value), value)) if whole else sorted(values)


def _coded(
    name: str, entries: Sequence[str], source: object, names: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if "" in entries:
        raise DatasetCorruptError(
            f"Expected every sample of {source} to have a value of `{name}`, but sample {list(entries).index('') + 1} has "
            "none: fill it in, or leave the sample out."
        )
    values = list(names) if names is not None else _sorted(set(entries))
    return _positions(entries, values), tuple(values)


def _check_no_single(
    groups: NDArray[np.int64],
    y: NDArray[np.int64],
    a: NDArray[np.int64],
    class_names: Sequence[str],
    attribute_names: Sequence[str] | None,
    source: object,
) -> None:
    """Refuse a group of one sample by its number and its names; often its label is a slip of the pen."""
    _, first, counts = np.unique(groups, return_index=True, return_counts=True)
    if (counts > 1).all():
        return
    sample = int(first[counts == 1].min())
    names = [class_names[y[sample]], *([attribute_names[a[sample]]] if attribute_names else [])]
    raise DatasetCorruptError(
        "Expected at least two samples of every (class, attribute) group, one to train on and one to test with, but sample "
        f"{sample + 1} of {source} is the only one of {', '.join(repr(name[:40]) for name in names)}: correct it, leave it "
        "out, or say yourself who tests."
    )


def _owners(entries: Sequence[str], names: Sequence[str] | None) -> NDArray[np.int64]:
    values = list(names) if names is not None else _sorted(set(entries) - {""})
    return _positions(entries, values)


def _positions(entries: Sequence[str], values: Sequence[str]) -> NDArray[np.int64]:
    known = {value: position for position, value in enumerate(values)}
    return np.array([known.get(entry, -1) for entry in entries], dtype=np.int64)


def _given(
    name: str, entries: Sequence[str], source: object
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return the sorted positions of training, validation (``None`` where nobody validates) and test samples."""
    if unknown := [entry for entry in entries if entry.lower() not in SPLITS]:
        raise DatasetCorruptError(
            f"Expected every sample of {source} to have train, val or test as its `{name}`, but one has {unknown[0][:40]!r}: "
            "correct it."
        )
    codes = np.array([SPLITS[entry.lower()] for entry in entries], dtype=np.int64)
    train, val, test = (np.flatnonzero(codes == code) for code in range(3))
    if not len(train) or not len(test):
        raise DatasetCorruptError(
            f"Expected samples that train and samples that test in {source}, but `{name}` gives {len(train)} and {len(test)}: "
            "correct it, or leave that column out, so that `dataset.test_fraction` decides."
        )
    return train, val if len(val) else None, test
