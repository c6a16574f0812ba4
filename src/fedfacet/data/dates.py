"""Columns of dates, which a model is given as numbers of days."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?")
_EPOCH = datetime(1970, 1, 1)
_SECONDS = 86_400


def _iso(entry: str) -> datetime:
    if not _ISO.fullmatch(entry):
        raise ValueError(entry)
    read = datetime.fromisoformat(entry)
    return read if read.tzinfo is None else read.astimezone(UTC).replace(tzinfo=None)


def _written(form: str) -> Callable[[str], datetime]:
    def read(entry: str) -> datetime:
        clock = ("", " %H:%M", " %H:%M:%S")[entry.count(":")] if entry.isascii() and entry.count(":") < 3 else "?"
        return datetime.strptime(entry, form + clock)

    return read


_FORMS = {"YYYY-MM-DD": _iso} | {
    name: _written(form)
    for name, form in {
        "YYYY/MM/DD": "%Y/%m/%d",
        "DD.MM.YYYY": "%d.%m.%Y",
        "DD/MM/YYYY": "%d/%m/%Y",
        "MM/DD/YYYY": "%m/%d/%Y",
    }.items()
}


def days_of(entries: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the days since 1970 of entries that are dates, by the form of most entries; several forms may suit them, or none.

    Example:
        >>> days_of(["1970-01-02", "1970-01-03T12:00"]), days_of(["mild", "1970-01-02", "severe"])
        ({'YYYY-MM-DD': {'1970-01-02': 1.0, '1970-01-03T12:00': 2.5}}, {})
        >>> list(days_of(["01/02/2020"])), list(days_of(["01/02/2020", "31/01/2020", "30/01/2020"]))
        (['DD/MM/YYYY', 'MM/DD/YYYY'], ['DD/MM/YYYY'])
    """
    distinct = dict.fromkeys(entries)
    found = {}
    for name, read in _FORMS.items():
        days = {}
        for entry in distinct:
            try:
                days[entry] = (read(entry) - _EPOCH).total_seconds() / _SECONDS
            except (ValueError, OverflowError):
                continue
        if 2 * len(days) > len(distinct):
            found[name] = days
    most = max(map(len, found.values()), default=0)
    return {name: days for name, days in found.items() if len(days) == most}
