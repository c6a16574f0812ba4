"""Data sets from frames of pandas."""

from pathlib import Path
from typing import Any

from fedfacet.data.csv import Csv
from fedfacet.data.dataset import Dataset
from fedfacet.data.tables import Table
from fedfacet.errors import DatasetCorruptError


def dataset_from_frame(frame: Any, target: str, **settings: Any) -> Dataset:
    """Return a data set of a ``pandas.DataFrame``, by the rules of ``dataset=csv``; names of columns and categories stay.

    Dates and durations are days, and columns of categories are words. The categories of a class or an attribute keep their
    order.

    Args:
        frame: a row per sample.
        target: the column that is the class.
        settings: ``attribute``, ``split``, ``columns``, ``numbers``, ``words``, ``bins``, ``drop``, ``missing``,
            ``test_fraction`` and ``seed``, as in ``Csv``.

    Raises:
        ConfigError, DatasetCorruptError: as ``dataset=csv``; rows are counted from 0.

    Example:
        >>> import pandas
        >>> ages = pandas.DataFrame({"age": range(20, 60), "sick": pandas.Categorical(["no", "yes"] * 20, ["yes", "no"])})
        >>> dataset = dataset_from_frame(ages, "sick")
        >>> dataset.class_names, dataset.inputs_read
        (('yes', 'no'), 'age numbers')
    """
    if not hasattr(frame, "iloc"):
        raise TypeError(f"Expected a DataFrame of pandas, but got {type(frame).__name__}: give `pandas.DataFrame(...)`.")
    names = [str(name) for name in frame.columns]
    source = Csv(root=".", target=target, **settings)
    source.check_names(names, where := Path("the frame"))
    if not len(frame):
        raise DatasetCorruptError("Expected the frame to hold samples, but it has no rows: correct it.")
    columns, known = {}, {}
    for position, name in enumerate(names):
        if name in source.drop:
            continue
        series = frame.iloc[:, position]
        if series.dtype.kind == "m":  # durations, in days as dates are
            series = series.dt.total_seconds() / 86400
        lacking = series.isna().tolist()
        columns[name] = ["" if no else _entry(value) for no, value in zip(lacking, series.tolist(), strict=True)]
        if str(series.dtype) == "category":
            known[name] = [
                category for category in map(_entry, series.cat.categories.tolist()) if category in set(columns[name])
            ]
    table = Table(where, "correct it", range(len(frame)), columns, private=False, unit="row")
    return source.dataset_of(table, known)


def _entry(value: Any) -> str:
    """Return what a csv file would say."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value).strip()
