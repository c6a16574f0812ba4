"""Runs on devices -> the simulated minutes until a metric reaches a target."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfacet.analysis.groups import named
from fedfacet.analysis.notes import notes_on, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.tables import check_keys, check_metric, finished_of, group_runs, in_percent, ordered, origin_of
from fedfacet.analysis.writers import csv_of, latex_of, latex_text, markdown_of, markdown_text
from fedfacet.arguments import check_choice
from fedfacet.errors import ConfigError
from fedfacet.plots.figure import axis_name
from fedfacet.plots.times import Times, plot_times

CLOCK = "sim/clock"


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """When a run first reached a target.

    Attributes:
        seed: of the run.
        round: the first measured round at the target or beyond; ``None`` if there was none.
        minutes: of the simulated clock after that round, infinite if there was none.
        best: the best value of all rounds.
    """

    seed: int
    round: int | None
    minutes: float
    best: float


@dataclass(frozen=True, slots=True, eq=False)
class TimeTo:
    """When the runs of each setting reached each target; ``found`` maps (row, column, target) to its runs."""

    corner: str
    heads: str
    metric: str
    targets: tuple[float, ...]
    found: Mapping[tuple[str, str, float], Sequence[Reached]]
    std: str
    caption: str
    notes: tuple[str, ...]


def time_to(
    runs: Sequence[Run],
    *,
    metric: str,
    targets: Sequence[float],
    rows: Sequence[str] = ("selector",),
    columns: Sequence[str] = ("experiment",),
    std: str = "population",
    lower_is_better: bool = False,
    command: str | None = None,
) -> TimeTo:
    """Return the simulated time to the first measured round that is at each target or better.

    ``runs``, ``rows``, ``columns``, ``std``, ``lower_is_better`` and ``command`` are as in ``make_table``. ``targets`` are in
    the unit of ``metrics.csv``, 0.9 for an accuracy of 90 %.

    Raises:
        ConfigError: as ``make_table``, or if no run has a simulated clock, or a target of an accuracy is above 1.
        FedFacetError: if a run's ``metrics.csv`` cannot be read.
        ValueError: if ``std`` is none of ``make_table``'s.
    """
    check_choice("std", std, ("population", "sample"))
    if in_percent(metric) and (beyond := [target for target in targets if target > 1]):
        raise ConfigError(
            f"Expected targets of {metric} as a fraction between 0 and 1, as in metrics.csv, but got {beyond[0]:g}: write "
            f"{beyond[0] / 100:g} for {beyond[0]:g} %."
        )
    check_keys(runs, (*rows, *columns))
    finished = finished_of(runs)
    check_metric(finished, metric, ("last",))
    clocked = [run for run in finished if run.curve(CLOCK)]
    if not clocked:
        raise ConfigError(
            f"Expected runs with a simulated clock, but none of {len(finished)} has one: train with `devices`, such as "
            "devices=lognormal."
        )
    notes = notes_on_unfinished(runs)
    if len(clocked) < len(finished):
        notes.append(f"{len(finished) - len(clocked)} of {len(finished)} runs have no simulated clock and are left out.")
    groups = group_runs(clocked, rows, columns)
    notes += notes_on(groups, metric, ("last",), (*rows, *columns), by_round=True)
    found = {
        (*heads, target): [_reached(run, metric, target, lower_is_better) for run in members]
        for heads, members in groups.items()
        for target in targets
    }
    measured = named(finished, metric, "`")
    caption = (
        f"Simulated minutes to the first measured round in which {measured} is at the target or better, mean "
        f"± {std} standard deviation over seeds where all reach it. "
    )
    if metric.startswith(("test/", "personal_test/")):
        caption += "Nobody could have stopped there, because it is found on test data. "
    caption += origin_of(clocked, command)
    return TimeTo(" / ".join(rows), " / ".join(columns), metric, tuple(targets), found, std, caption, tuple(notes))


def draw_times(found: TimeTo, path: Path) -> None:
    """Draw the minutes, a panel per column and a line per row."""
    percent = in_percent(found.metric)
    targets = [f"{100 * target:g} %" if percent else f"{target:g}" for target in found.targets]
    panels: dict[str, list[Times]] = {}
    for column in ordered({column for _, column, _ in found.found}):
        for row in ordered({row for row, head, _ in found.found if head == column}):
            cells = [found.found[row, column, target] for target in found.targets]
            minutes = [[one.minutes for one in cell if one.round is not None] for cell in cells]
            seeds = len(cells[0])
            missed: dict[str, list[str]] = {}
            for target, of in zip(targets, minutes, strict=True):
                if len(of) < seeds:
                    missed.setdefault(f"{len(of)} of {seeds} seeds" if of else "never", []).append(target)
            remark = "; ".join(f"{', '.join(these)}: {reached}" for reached, these in missed.items())
            panels.setdefault(column, []).append(Times(row, seeds, minutes, remark))
    plot_times(panels, targets, axis_name(found.metric), path)


def time_to_markdown(found: TimeTo) -> str:
    """Return a line per setting as Markdown."""
    return markdown_of(_grid(found, markdown_text), found.caption, found.notes, flush_left=1 + _several_columns(found))


def time_to_latex(found: TimeTo) -> str:
    r"""Return a line per setting as a LaTeX float that needs ``\usepackage{booktabs}``."""
    grid, label = _grid(found, latex_text), f"time to {found.metric}"
    return latex_of(grid, found.caption, found.notes, label=label, flush_left=1 + _several_columns(found))


def time_to_csv(found: TimeTo) -> str:
    """Return a line per setting, seed and target, unrounded; minutes and round are empty where it was not reached."""
    lines: list[tuple[object, ...]] = [("row", "column", "seed", "metric", "target", "minutes", "round", "best")]
    for (row, column, target), reached in found.found.items():
        for one in reached:
            minutes = one.minutes if one.round is not None else ""
            lines.append(
                (row, column, one.seed, found.metric, target, minutes, "" if one.round is None else one.round, one.best)
            )
    return csv_of(lines)


def _reached(run: Run, metric: str, target: float, lower_is_better: bool) -> Reached:
    measured, clock = run.curve(metric), run.curve(CLOCK)
    better = min if lower_is_better else max
    best = better(measured.values(), default=math.nan)
    there = (round for round, value in sorted(measured.items()) if (value <= target if lower_is_better else value >= target))
    first = next(there, None)
    return Reached(run.seed, first, math.inf if first is None else clock[first] / 60, best)


def _several_columns(found: TimeTo) -> bool:
    return len({column for _, column, _ in found.found}) > 1


def _grid(found: TimeTo, escape: Callable[[str], str]) -> list[list[str]]:
    several = _several_columns(found)
    heads = [found.corner, *([found.heads] if several else []), "seeds"]
    grid = [list(map(escape, [*heads, *(f"minutes to {target:g}" for target in found.targets)]))]
    for column in ordered({column for _, column, _ in found.found}):
        for row in ordered({row for row, head, _ in found.found if head == column}):
            cells = [found.found[row, column, target] for target in found.targets]
            line = [row, *([column] if several else []), str(len(cells[0])), *(_cell(cell, found.std) for cell in cells)]
            grid.append(list(map(escape, line)))
    return grid


def _cell(reached: Sequence[Reached], std: str) -> str:
    """Return the mean where all seeds are there, or how many are, and the best value of those that are not."""
    there = [one.minutes for one in reached if one.round is not None]
    if len(there) < len(reached):
        values = [one.best for one in reached if one.round is None]
        best = statistics.fmean(values)
        many = f"reached by {len(there)} of {len(reached)}" if there else "not reached"
        return f"{many} (best {best:.4g})"
    spread = statistics.pstdev if std == "population" else statistics.stdev
    return f"{statistics.fmean(there):.4g}" + (f" ± {spread(there):.4g}" if len(there) > 1 else "")
