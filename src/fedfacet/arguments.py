"""Checks of arguments that many parts have alike; each raises ``ValueError`` with one sentence."""

from collections.abc import Sequence


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number, or smaller than ``least``.

    Example:
        >>> check_whole("num_clusters", 0)
        Traceback (most recent call last):
        ValueError: Expected `num_clusters` to be a whole number, 1 or larger, but got 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"Expected `{name}` to be a whole number, {least} or larger, but got {value!r}.")


def check_within(name: str, value: float, interval: str) -> None:
    """Refuse a number outside an interval, NaN among them.

    Example:
        >>> check_within("floor", 0.0, "(0, 1]")
        Traceback (most recent call last):
        ValueError: Expected `floor` in (0, 1], but got 0.0.
    """
    low, high = map(float, interval[1:-1].split(","))
    within = low <= value <= high and not (value == low and interval[0] == "(") and not (value == high and interval[-1] == ")")
    if not within:
        raise ValueError(f"Expected `{name}` in {interval}, but got {value}.")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse what is none of the choices, of which there are two or more.

    Example:
        >>> check_choice("within", "size", ("norm", "uniform"))
        Traceback (most recent call last):
        ValueError: Expected `within` to be 'norm' or 'uniform', but got 'size'.
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"Expected `{name}` to be {', '.join(others)} or {last}, but got {value!r}.")
