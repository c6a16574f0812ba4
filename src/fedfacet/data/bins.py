"""Numbers put into ranges, of which a class, an attribute or clients can be made."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfacet.errors import ConfigError


def check_edges(name: str, edges: object) -> None:
    """Refuse edges of ranges that are not ascending numbers, by ``ConfigError``."""
    numbers = list(edges) if isinstance(edges, Sequence) and not isinstance(edges, str) else []
    whole = all(isinstance(edge, int | float) and math.isfinite(edge) for edge in numbers)
    if not numbers or not whole or any(one >= other for one, other in itertools.pairwise(numbers)):
        raise ConfigError(
            f"Expected `dataset.bins.{name}` to be ascending numbers, but got {edges!r}: write, for example, "
            f"`dataset.bins.{name}=[40,60]`."
        )


def names_of_ranges(name: str, edges: Sequence[float], *, whole: bool) -> list[str]:
    """Return what the ranges between some edges are called; each has its lower edge.

    Example:
        >>> names_of_ranges("age", [40, 60], whole=True), names_of_ranges("bmi", [18.5, 25], whole=False)
        (['age<40', '40-59', '60+'], ['bmi<18.5', '[18.5,25)', '25+'])
    """
    whole = whole and all(float(edge).is_integer() for edge in edges)
    between = [
        (f"{low:.15g}-{high - 1:.15g}" if high - 1 > low else f"{low:.15g}") if whole else f"[{low:.15g},{high:.15g})"
        for low, high in itertools.pairwise(edges)
    ]
    return [f"{name}<{edges[0]:.15g}", *between, f"{edges[-1]:.15g}+"]


def suggested(numbers: NDArray[np.float64]) -> str:
    """Return edges that cut numbers into about equal thirds, as an option has them.

    Example:
        >>> suggested(np.arange(20.0, 90.0))
        '[43,66]'
    """
    edges = sorted({float(f"{edge:.2g}") for edge in np.quantile(numbers, (1 / 3, 2 / 3))})
    return f"[{','.join(f'{edge:.15g}' for edge in edges)}]"
