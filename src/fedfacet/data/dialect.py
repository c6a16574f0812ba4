"""How somebody's csv file is written: encoding, separator and decimal mark, found in the file where it leaves no doubt."""

import codecs
import csv
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from fedfacet.data.entries import visible
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
"""What is between the entries of a line, by name."""

_ROWS = 50
_UTF_8 = re.compile(rb"[\xc2-\xf4][\x80-\xbf]")
_SIGNS = frozenset("°€§µ²³½¼¾£«»±×·–—“”„…\u2018\u2019\xa0")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]{1,3})?")
_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+([eE][+-]?[0-9]{1,3})?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")


def encoding_of(path: Path) -> str:
    """Return the encoding of a file of text: UTF-8, UTF-16 with its mark, or Windows-1252, which Latin-1 is a part of.

    A file is taken for Windows-1252 if no part of it is in UTF-8, and if all beyond ASCII is alphabetic or a common sign. Of
    any other file UTF-8 is returned, and reading it fails.
    """
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for line in file:
                decoder.decode(line)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            file.seek(0)
            return "cp1252" if all(map(_is_western, file)) else "utf-8-sig"
    return "utf-8-sig"


def separator_of(path: Path, encoding: str, expected: str, remedy: str) -> str:
    """Return the separator of a file's entries, by name: that of line 1, and where it has several, that of all rows.

    Raises:
        DatasetCorruptError: if two would do, or the file cannot be read.
    """
    columns = {}
    for name, separator in SEPARATORS.items():
        with reading(path, expected, remedy), path.open(newline="", encoding=encoding, errors="replace") as file:
            rows = csv.reader(file, skipinitialspace=True, delimiter=separator)
            columns[name] = [len(row) for row in itertools.islice(filter(None, rows), _ROWS)]
    several = [name for name, counts in columns.items() if counts and counts[0] > 1]
    if len(several) > 1:
        several = [name for name in several if len(set(columns[name])) == 1] or several
    if len(several) > 1:
        told = " or ".join(f"{columns[name][0]} by {SEPARATORS[name]!r}" for name in several)
        raise DatasetCorruptError(
            f"Line 1 of {visible(path)} could name {told}: say which with `dataset.separator={several[0]}` or `{several[1]}`."
        )
    return several[0] if several else "comma"


def has_decimal_commas(entries: Iterable[str]) -> bool:
    """Tell whether the numbers among some entries, none of which is a list, certainly have decimal commas.

    Example:
        >>> [has_decimal_commas(entries) for entries in (["1,5", "2"], ["1,500"], ["1,5", "2.5"])]
        [True, False, False]
    """
    commas = False
    for entry in set(entries):
        if _POINT.fullmatch(entry):
            return False
        commas |= _COMMA.fullmatch(entry) is not None and _THOUSANDS.fullmatch(entry) is None
    return commas


def with_points(entries: Iterable[str]) -> list[str]:
    """Return entries, decimal points instead of the decimal commas of numbers."""
    written = {entry: entry.replace(",", ".") if _COMMA.fullmatch(entry) else entry for entry in set(entries)}
    return [written[entry] for entry in entries]


def _is_western(line: bytes) -> bool:
    """Tell whether a line is likely to be in Windows-1252."""
    try:
        text = line.decode("cp1252")
    except UnicodeDecodeError:
        return False
    beyond = {sign for sign in text if not sign.isascii()}
    return not _UTF_8.search(line) and all(sign.isalpha() or sign in _SIGNS for sign in beyond)
