"""What one entry of somebody's own data says: that a value is missing, a number, or a word and which spellings it has."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.errors import DatasetCorruptError

Place = Callable[[int], str]
"""Says where a sample comes from, such as ``line 7 of people.csv``."""

_EXCEL = ("#na", "#n/a", "#null", "#num", "#div/0", "#ref", "#value", "#name", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
_MISSING = frozenset((*("na", "n/a", "n.a", "nan", "+nan", "-nan", "nat", "n/d", "null", "none", "nil", "\\n"), *_EXCEL))
_MARKS = re.compile(r"[-?.\u2010-\u2015\u2212]*")
_NUMBER = re.compile(r"[+-]?([0-9]{1,300}\.?[0-9]{0,300}|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?")
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CATEGORY = re.compile(r"\d[\d.]* *[-\u2010-\u2015] *\d[\d.]*|\d[\d.]*\+|[<>=~\u2264\u2265].*|[\[(].*[\])]")
_MONTH = "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?)"
_DATE = rf"[0-9]{{1,4}}[-/. ]+([0-9]{{1,2}}|{_MONTH})[-/. ,]+[0-9]{{1,4}}.*|{_MONTH}[-/. ]+[0-9].*"
_NOTATION = re.compile(rf"[+-]?(0[xob][0-9a-f]+|inf(inity)?|[0-9.]+e[+-]?[0-9]+)|{_DATE}")
_FEW, _MOST_NAMED = 10, 9


def trimmed(entry: str) -> str:
    """Return an entry without the blanks around it, invisible ones among them."""
    return entry.strip() if entry.isascii() else entry.strip().strip("\ufeff\u200b").strip()


def is_missing(entry: str) -> bool:
    """Tell whether an entry says that there is no value: it is empty, or one of the words for that.

    Example:
        >>> [is_missing(entry) for entry in (" ", "NaN", "n/a", "-", "?", "0", "no")]
        [True, True, True, True, True, False, False]
    """
    if is_number(entry):
        return False
    text = spelling(entry)
    return _MARKS.fullmatch(text) is not None or text.strip("<>()[]{}") in _MISSING


def is_number(entry: str) -> bool:
    """Tell whether an entry is a number with ASCII digits and maybe a decimal point, or an exponent of up to three digits."""
    return _NUMBER.fullmatch(entry) is not None


def resembles_number(entry: str) -> bool:
    """Tell whether a word is rather a number or a date in another notation than ``is_number`` takes.

    Example:
        >>> [resembles_number(entry) for entry in ("1,5", "1_000", "0x1f", "2020-01-31", "inf", "20-29", ">5", "b2")]
        [True, True, True, True, True, False, False, False]
    """
    text = unicodedata.normalize("NFKC", entry).casefold()
    if _NOTATION.fullmatch(text):
        return True
    digits, letters = any(map(str.isdigit, text)), any(map(str.isalpha, text))
    return digits and not letters and not _CATEGORY.fullmatch(text)


def spelling(entry: str) -> str:
    """Return what all spellings of one word or number have in common.

    Spellings differ in case, in blanks and underscores, in a mark at the end, or in how a number is written.

    Example:
        >>> [spelling(entry) for entry in ("Yes", "yes.", "1.0", "01", "C++")]
        ['yes', 'yes', '1', '1', 'c++']
    """
    text = entry
    if not text.isascii():
        normal = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
        text = "".join(sign for sign in normal if sign.isspace() or unicodedata.category(sign) not in ("Cc", "Cf"))
    text = " ".join(text.casefold().replace("_", " ").replace("\x00", "").split())
    text = text.strip("'\"").rstrip(".,;:!?'\" ") or text
    return str(Fraction(text)) if is_number(text) else text


def ordered(values: Iterable[str]) -> list[str]:
    """Return values as they are numbered: numbers by size, then words in alphabetical order.

    Example:
        >>> ordered({"10", "9", "2.0", "b", "a"})
        ['2.0', '9', '10', 'a', 'b']
    """
    return sorted(values, key=lambda value: (0, Fraction(value), value) if is_number(value) else (1, 0, value))


def alike(values: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two values that are spellings of one; ``None`` where there are none."""
    known: dict[str, str] = {}
    for value in values:
        if (first := known.setdefault(spelling(value), value)) != value:
            return first, value
    return None


def too_many(values: Sequence[str], num_samples: int) -> bool:
    """Tell whether values are too many for categories: different ones in most samples, or many fractions."""
    fractions = sum(is_number(value) and Fraction(value).denominator > 1 for value in values)
    return len(values) > max(_FEW, num_samples / 2) or fractions > 2 * _FEW


def shown(value: str) -> str:
    """Return the beginning of what somebody wrote, in quotes, so that a terminal shows it and does nothing else."""
    return repr(value[:40])


def listed(codes: Sequence[int] | NDArray[np.integer[Any]], names: Sequence[str]) -> str:
    """Return the first names of some codes, in quotes."""
    more = "" if len(codes) <= _MOST_NAMED else f" and {len(codes) - _MOST_NAMED} more"
    return ", ".join(shown(names[code]) for code in codes[:_MOST_NAMED]) + more


def first_rows(entries: Sequence[str]) -> Mapping[str, int]:
    """Return the row in which each entry comes first, in the order of these rows."""
    rows: dict[str, int] = {}
    for row, entry in enumerate(entries):
        rows.setdefault(entry, row)
    return rows


def check_entries(name: str, rows: Mapping[str, int], where: Place, remedy: str) -> None:
    """Refuse entries of a column that are missing, or that hold invisible characters.

    Args:
        name: of the column.
        rows: what ``first_rows`` returns.
        where: a sample comes from.
        remedy: what else to do about a missing value, as the end of a sentence.

    Raises:
        DatasetCorruptError: naming the first such place and the entry.
    """
    for entry, row in rows.items():
        if is_missing(entry):
            raise DatasetCorruptError(
                f"Expected a value of {name!r} for every sample, but {where(row)} has {shown(entry)}, which says that there is "
                f"none: fill it in, write another word if it is a value, or {remedy}."
            )
    check_visible(name, rows, where)


def holds_controls(text: str) -> bool:
    """Tell whether a text holds control characters, or others that change how a terminal shows it."""
    return _HIDDEN.search(text) is not None


def visible(named: object) -> str:
    """Return a name or a path as it is, or in quotes and escaped where it holds control characters.

    Example:
        >>> visible("a.png"), len(visible(chr(7)))
        ('a.png', 6)
    """
    text = str(named)
    return repr(text) if holds_controls(text) else text


def check_visible(name: str, rows: Mapping[str, int], where: Place) -> None:
    """Refuse entries of a column that hold control characters, by ``DatasetCorruptError``."""
    for entry, row in rows.items():
        if holds_controls(entry):
            raise DatasetCorruptError(
                f"Expected values of {name!r} without control characters, but {where(row)} has {shown(entry)}: correct it."
            )


def check_spellings(name: str, rows: Mapping[str, int], where: Place) -> None:
    """Refuse two entries of a column that are spellings of one, by ``DatasetCorruptError``."""
    if (pair := alike(rows)) is not None:
        first, second = pair
        raise DatasetCorruptError(
            f"Expected one spelling of every value of {name!r}, but {where(rows[first])} has {shown(first)} and "
            f"{where(rows[second])} has {shown(second)}: write them alike if they are one, and let more differ if they are two."
        )
