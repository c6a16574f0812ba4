"""Checks of arguments, and the ranges that the fields of a part declare; each raises ``ValueError`` with one sentence."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints


class Range(ABC):
    """The values that an argument may have."""

    @abstractmethod
    def fault(self, value: Any) -> str:
        """Return what is wanted and what came instead; nothing if the value is fine."""

    def check(self, name: str, value: Any) -> None:
        """Refuse any other value, NaN among them."""
        if fault := self.fault(value):
            raise ValueError(f"Expected `{name}` {fault}.")


@dataclass(frozen=True)
class Whole(Range):
    """A whole number, ``least`` or larger; ``words`` say it otherwise."""

    least: int = 1
    words: str = ""

    def fault(self, value: Any) -> str:
        """Return what is wrong."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= self.least:
            return ""
        return f"to be {self.words or f'a whole number, {self.least} or larger'}, but got {value!r}"


@dataclass(frozen=True)
class Within(Range):
    """A number in an interval, such as ``"[0, 1)"``; ``remedy`` ends the refusal."""

    interval: str
    remedy: str = ""

    def fault(self, value: Any) -> str:
        """Return what is wrong."""
        low, high = map(float, self.interval[1:-1].split(","))
        at_open_end = (value == low and self.interval[0] == "(") or (value == high and self.interval[-1] == ")")
        return "" if low <= value <= high and not at_open_end else f"in {self.interval}, but got {value}{self.remedy}"


@dataclass(frozen=True)
class Number(Range):
    """A number in words: ``"finite"``, ``"larger than 0"``, ``"1 or larger, and finite"``."""

    words: str

    def fault(self, value: Any) -> str:
        """Return what is wrong."""
        bound = re.search(r"[\d.]+", self.words)
        low = float(bound[0]) if bound else -math.inf
        in_range = value >= low if "or larger" in self.words else value > low
        return "" if in_range and not ("finite" in self.words and value == math.inf) else f"to be {self.words}, but got {value}"


class Choice(Range):
    """One of two values or more."""

    def __init__(self, *choices: object) -> None:
        self.choices = choices

    def __repr__(self) -> str:
        return f"Choice{self.choices}"

    def fault(self, value: Any) -> str:
        """Return what is wrong."""
        if value in self.choices:
            return ""
        *others, last = map(repr, self.choices)
        return f"to be {', '.join(others)} or {last}, but got {value!r}"


class Declared:
    """A part whose fields declare what they may be; a dataclass, whose constructor refuses any other value.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(eq=False, kw_only=True)
        ... class Half(Declared):
        ...     share: Annotated[float | None, Within("[0, 1]")] = 0.5
        >>> Half(share=2)
        Traceback (most recent call last):
        ValueError: Expected `share` in [0, 1], but got 2.
    """

    option_group: ClassVar[str] = ""
    """What stands before the name of a field in a refusal, such as ``"devices."``."""

    def __post_init__(self) -> None:
        """Check the fields in their order; ``None`` is fine where the type has it.

        Raises:
            ValueError: if a value is out of its range.
        """
        for name, declared, is_optional in _ranges(type(self)):  # type: ignore[arg-type]  # that of a class is hashable
            value = getattr(self, name)
            if value is not None or not is_optional:
                declared.check(f"{self.option_group}{name}", value)


@cache
def _ranges(part: type) -> list[tuple[str, Range, bool]]:
    """Return for every declared range of a dataclass the field, the range, and whether the field may be ``None``.

    A field that only gives another default keeps the range that a base class declares.
    """
    found = {}
    for kind in reversed(part.__mro__):
        for field in vars(kind).get("__dataclass_fields__", {}).values():
            hint = field.type
            if isinstance(hint, str) and "Annotated" in hint:  # `from __future__ import annotations`
                hint = get_type_hints(kind, include_extras=True)[field.name]
            for declared in getattr(hint, "__metadata__", ()):
                if isinstance(declared, Range):
                    found[field.name] = declared, type(None) in get_args(get_args(hint)[0])
    return [(name, *range_) for name, range_ in found.items()]


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number, or smaller than ``least``.

    Example:
        >>> check_whole("num_clusters", 0)
        Traceback (most recent call last):
        ValueError: Expected `num_clusters` to be a whole number, 1 or larger, but got 0.
    """
    Whole(least).check(name, value)


def check_within(name: str, value: float, interval: str) -> None:
    """Refuse a number outside an interval, NaN among them.

    Example:
        >>> check_within("floor", 0.0, "(0, 1]")
        Traceback (most recent call last):
        ValueError: Expected `floor` in (0, 1], but got 0.0.
    """
    Within(interval).check(name, value)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse what is none of the choices, of which there are two or more.

    Example:
        >>> check_choice("within", "size", ("norm", "uniform"))
        Traceback (most recent call last):
        ValueError: Expected `within` to be 'norm' or 'uniform', but got 'size'.
    """
    Choice(*choices).check(name, value)
