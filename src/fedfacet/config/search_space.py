"""What a search draws from, in Hydra's grammar of overrides: choices, ranges and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from fedfacet.config.sweeping import MAX_JOBS, num_values, read_by_key, values_of
from fedfacet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers from ``low`` to ``high``, both included, by ``step`` if there is one, or evenly on a ``log`` scale."""

    low: float
    high: float
    step: float | None
    log: bool


@dataclass(frozen=True, slots=True)
class Dimension:
    """The values of one key.

    Attributes:
        values: as they are spelt on a command line; of an interval, its two ends.
        numbers: what they are drawn from; ``None`` where they have no order.
    """

    values: tuple[str, ...]
    numbers: Numbers | None

    def spelt(self, drawn: Any) -> str:
        """Return a value that was drawn as it is given on a command line."""
        if self.numbers is None:
            return str(drawn)
        if self.numbers.step is None or isinstance(drawn, int):
            return repr(drawn)
        return min(self.values, key=lambda value: abs(float(value) - drawn))  # 0.3, not 0.30000000000000004

    @property
    def ends(self) -> tuple[str, ...]:
        """The values to be checked before a search begins: all choices, and the ends of what has an order."""
        return self.values if self.numbers is None else (self.values[0], self.values[-1])


def search_space(overrides: Sequence[str]) -> tuple[list[str], tuple[str, ...], dict[str, Dimension]]:
    """Return the overrides that are fixed, the seeds as they are given, and what is drawn, by key.

    Raises:
        ConfigError: if there is nothing to be drawn, or something that cannot be.
    """
    seeds: tuple[str, ...] = ()
    space: dict[str, Dimension] = {}
    with read_by_key(overrides) as given:
        for key, one in sorted(given.items()):  # equal searches draw equally
            if num_values(one) > MAX_JOBS or num_values(one) < 1:
                raise ConfigError(f"Expected 1 to {MAX_JOBS:,} values of `{key}`, but got {one.input_line}: give others.")
            if key == "seed":
                seeds = tuple(values_of(one))
            elif one.is_sweep_override():
                space[key] = _dimension(one)
        fixed = [str(one.input_line) for key, one in given.items() if key not in space and key != "seed"]
    if not space:
        raise ConfigError(
            "Expected something to search, but every setting has one value: give a setting several, for example "
            "'optimizer.lr=tag(log,interval(0.01,0.3))' or selector=uniform,pow_d."
        )
    return fixed, seeds, space


def values_for(space: Mapping[str, Dimension], drawn: Mapping[str, Any]) -> list[str]:
    """Return the overrides of one trial."""
    return [f"{key}={dimension.spelt(drawn[key])}" for key, dimension in space.items()]


def _dimension(one: Override) -> Dimension:
    sweep: Any = one.value()
    log, values, step = "log" in sweep.tags, tuple(values_of(one)), None
    if isinstance(sweep, IntervalSweep):
        if is_whole := "int" in sweep.tags or isinstance(sweep.start, int):  # int(interval(1,10))
            values, step = tuple(str(int(float(end))) for end in values), 1.0
    elif isinstance(sweep, RangeSweep):
        values, step = tuple(sorted(values, key=float)), abs(float(sweep.step))
        is_whole = not any("." in value for value in values)
    else:
        return Dimension(values, None)
    low, high = (int(end) if is_whole else float(end) for end in (values[0], values[-1]))
    if not low < high or (log and low <= 0):
        raise ConfigError(
            f"Expected two numbers in order{', larger than 0,' if log else ''} for `{one.key_or_group}`, but got "
            f"{one.input_line}: fix them."
        )
    if log and step not in (None, 1):
        raise ConfigError(f"Expected steps of 1 on a log scale, but got {one.input_line}: leave the step or the tag out.")
    return Dimension(values, Numbers(low, high, step, log))
