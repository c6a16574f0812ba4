"""Command lines that are printed, to be typed again."""

import shlex
from collections.abc import Iterable


def typed(words: Iterable[object]) -> str:
    r"""Return words as a shell takes them, without a sign that would move a terminal's cursor.

    Example:
        >>> print(typed(["a b", "c", "d\x1b[0m\n"]))
        'a b' c $'d\x1b[0m\x0a'
    """
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in map(str, words)
    )


def _escaped(sign: str) -> str:
    if sign in "'\\":
        return f"\\{sign}"
    number = ord(sign)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a path that is no text
        number -= 0xDC00
    elif sign.isprintable():
        return sign
    elif number >= 0x80:
        return rf"\U{number:08x}"
    return rf"\x{number:02x}"
