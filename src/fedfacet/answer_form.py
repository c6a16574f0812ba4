"""What an answer to a query must be like, and the one check that holds answers to it."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

LARGEST = float(np.finfo(np.float32).max)
"""The largest finite number that a model in float32 can put out."""

MOST_SAMPLES = 2**31 - 1
"""More than any client has."""

ANYTHING: "AnswerForm"
"""Of a query that declares nothing: numbers, and lists of them."""

_MOST = 2**53
_DEEPEST = 8
_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What an answer to a query must be like: a number, or nested lists of numbers.

    Attributes:
        shape: of the lists, ``()`` for a single number. An entry is a size, ``"Y"`` for the number of classes, ``"A"`` for that
            of attribute values, a ``range`` of sizes, or ``None`` for any size. ``None`` for lists of any shape.
        low: the least finite number, or one for each entry of the last axis.
        high: the largest one, likewise.
        finite: whether NaN and infinity are out of range. They tell of a model that diverged, or of a client without samples.
        counts: which part of the answer counts the client's samples, as an index of an array; ``None`` for none of it. These
            are whole numbers, 0 or larger, and add up to the client's number of samples at most.
        least: what they add up to at least.
        parts: whether the first of two tables adds up parts of what the second counts, so that no entry of it is larger.
    """

    shape: tuple[int | str | range | None, ...] | None = ()
    low: float | tuple[float, ...] = -LARGEST
    high: float | tuple[float, ...] = LARGEST
    finite: bool = True
    counts: EllipsisType | int | None = None
    least: int = 0
    parts: bool = False

    def misfit(self, value: Any, sizes: Mapping[str, int], most: int = MOST_SAMPLES) -> str | None:
        """Say how a value differs from this form; ``None`` if it does not.

        Args:
            value: what came, of any type.
            sizes: of the data set, by their letters; one that is not known, or 0, is not checked.
            most: how many samples the client has at most.
        """
        came = shown(value)
        if not _is_plain(value):
            return f"{came}, which is not made of numbers"
        try:
            numbers: NDArray[np.float64] = np.array(value, dtype=np.float64)
        except (ValueError, OverflowError):
            return f"{came}, whose lists are of several lengths or whose numbers are too large"
        if not self._has_shape(numbers, sizes):
            return f"{came} of shape {numbers.shape} instead of {self._wanted(sizes)}"
        if self.finite and not np.isfinite(numbers).all():
            return came
        outside = (numbers < self.low) | ((numbers > self.high) & (numbers < math.inf))
        if outside.any():
            return f"{came}, where {numbers[outside].flat[0]:g} is out of range"
        if self.counts is not None:
            counted = numbers[self.counts]
            if not (counted == np.floor(counted)).all() or (counted < 0).any() or not self.least <= counted.sum() <= most:
                return f"{came}, where {counted.sum():g} samples are counted instead of {self.least} to {most}"
        if self.parts and (numbers[0] > numbers[1] * (1 + 1e-6)).any():
            return f"{came}, where more is told of a group than it has samples"
        return None

    def _has_shape(self, numbers: NDArray[np.float64], sizes: Mapping[str, int]) -> bool:
        if self.shape is None:
            return True
        wanted = self._wanted(sizes)
        if not numbers.size and numbers.ndim < len(wanted):  # an empty list is a table without rows too
            wanted = wanted[: numbers.ndim]
        return len(wanted) == numbers.ndim and all(
            want is None or (size in want if isinstance(want, range) else size == want)
            for size, want in zip(numbers.shape, wanted, strict=True)
        )

    def _wanted(self, sizes: Mapping[str, int]) -> tuple[int | range | None, ...]:
        return tuple((sizes.get(one) or None) if isinstance(one, str) else one for one in self.shape or ())


ANYTHING = AnswerForm(shape=None, low=-math.inf, finite=False)


def plain(value: Any) -> Any:
    """Return a value as Python's numbers and lists, where it is an array or a tensor."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value


def shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    text = reprlib.repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number, 0 or larger, that a float holds as well."""
    return type(value) is int and 0 <= value <= _MOST


def is_finite(answer: Any) -> bool:
    """Tell whether an answer of any form holds neither NaN nor infinity."""
    return bool(np.isfinite(np.asarray(answer, dtype=np.float64)).all())


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, list | tuple):
        return depth < _DEEPEST and all(_is_plain(one, depth + 1) for one in value)
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
