"""Runs on devices -> the simulated minutes until a metric reaches a target."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfacet.analysis.groups import named
from fedfacet.analysis.notes import notes_on, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, group_runs, in_columns, in_percent, origin_of
from fedfacet.analysis.tables import cell_of
from fedfacet.analysis.writers import Table, distinguishing_columns
from fedfacet.errors import ConfigError
from fedfacet.plots.style import BLUE, ORANGE, VERMILION, axis_name, saved_panels

CLOCK = "sim/clock"

_LOOKS = (("o", BLUE), ("s", ORANGE), ("D", VERMILION), ("^", "black"))


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

    study: Study
    targets: tuple[float, ...]
    found: Mapping[tuple[str, str, float], Sequence[Reached]]
    caption: str
    notes: tuple[str, ...]

    @property
    def settings(self) -> dict[tuple[str, str], list[Sequence[Reached]]]:
        """(row, column) -> the runs there, by target."""
        places = in_columns({(row, column): None for row, column, _ in self.found})
        return {place: [self.found[(*place, target)] for target in self.targets] for place in places}

    def table(self) -> Table:
        """Return a line per setting; in CSV a line per setting, seed and target, empty where it was not reached."""
        study = self.study
        columns = [study.corner, study.heads, "seeds", *(f"minutes to {target:g}" for target in self.targets)]
        rows = [
            [*place, str(len(cells[0])), *(_cell(cell, study.std) for cell in cells)] for place, cells in self.settings.items()
        ]
        numbers: list[Sequence[Any]] = [("row", "column", "seed", "metric", "target", "minutes", "round", "best")]
        for (row, column, target), reached in self.found.items():
            for one in reached:
                when = ("", "") if one.round is None else (one.minutes, one.round)
                numbers.append((row, column, one.seed, study.metric, target, *when, one.best))
        shown, label = distinguishing_columns(columns, rows, names=2), f"time to {study.metric}"
        return Table(self.caption, **shown, notes=self.notes, label=label, numbers=numbers)


def time_to(runs: Sequence[Run], *, targets: Sequence[float], **asked: Any) -> TimeTo:
    """Return the simulated time to the first measured round that is at each target or better.

    ``runs`` and ``asked`` are as for ``Study``. ``targets`` are in the unit of ``metrics.csv``, 0.9 for an accuracy of 90 %.

    Raises:
        ConfigError: as ``Study``, or if no run has a simulated clock, or a target of an accuracy is above 1.
        FedFacetError: if a run's ``metrics.csv`` cannot be read.
        ValueError: as ``Study``.
    """
    metric = asked["metric"]
    if in_percent(metric) and (beyond := [target for target in targets if target > 1]):
        raise ConfigError(
            f"Expected targets of {metric} as a fraction between 0 and 1, as in metrics.csv, but got {beyond[0]:g}: write "
            f"{beyond[0] / 100:g} for {beyond[0]:g} %."
        )
    study = Study(runs, **asked)
    finished = study.finished
    clocked = [run for run in finished if run.curve(CLOCK)]
    if not clocked:
        raise ConfigError(
            f"Expected runs with a simulated clock, but none of {len(finished)} has one: train with `devices`, such as "
            "devices=lognormal."
        )
    notes = notes_on_unfinished(runs)
    if len(clocked) < len(finished):
        notes.append(f"{len(finished) - len(clocked)} of {len(finished)} runs have no simulated clock and are left out.")
    groups = group_runs(clocked, study.rows, study.columns)
    notes += notes_on(groups, metric, study.moments, study.keys, by_round=True)
    found = {
        (*heads, target): [_reached(run, metric, target, study.lower_is_better) for run in members]
        for heads, members in groups.items()
        for target in targets
    }
    measured = named(finished, metric, "`")
    caption = (
        f"Simulated minutes to the first measured round in which {measured} is at the target or better, mean "
        f"± {study.std} standard deviation over seeds where all reach it. "
    )
    if metric.startswith(("test/", "personal_test/")):
        caption += "Nobody could have stopped there, because it is found on test data. "
    caption += origin_of(clocked, study.command)
    return TimeTo(study, tuple(targets), found, caption, tuple(notes))


def draw_times(found: TimeTo, path: Path) -> None:
    """Draw the minutes into a picture, on a logarithmic axis, a panel per column and a line per row.

    Each target has a marker: at the mean over seeds, hollow if some seeds miss the target, and small and pale for each seed.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    targets = [f"{100 * target:g} %" if found.study.percent else f"{target:g}" for target in found.targets]
    looks = [_LOOKS[place % len(_LOOKS)] for place in range(len(targets))]
    settings = {
        setting: [[one.minutes for one in cell if one.round is not None] for cell in cells]
        for setting, cells in found.settings.items()
    }
    panels = list(dict.fromkeys(column for _, column in settings))
    names = list(dict.fromkeys(row for row, _ in settings))

    def size(rows: int, columns: int) -> tuple[float, float]:
        return 1.0 + 3.2 * columns, 0.5 + rows * (0.7 + 0.28 * len(names))

    with saved_panels(path, len(panels), size, sharey=True) as (figure, grid):
        for axes, panel in zip(grid, panels, strict=True):
            lines = {row: minutes for (row, column), minutes in settings.items() if column == panel}
            all_minutes = [minutes for line in lines.values() for of in line for minutes in of]
            first = min(all_minutes, default=1.0)
            for row, line in lines.items():
                seeds = len(found.settings[row, panel][0])
                y, means = len(names) - names.index(row), [sum(of) / len(of) for of in line if of]
                axes.plot(means, [y] * len(means), color="0.7", linewidth=1, zorder=1)
                for (marker, colour), of in zip(looks, line, strict=True):
                    axes.plot(of, [y] * len(of), marker, color=colour, markersize=3, alpha=0.35, markeredgewidth=0, zorder=2)
                    if of:
                        face = colour if len(of) == seeds else "white"
                        axes.plot(sum(of) / len(of), y, marker, color=colour, markerfacecolor=face, markersize=5, zorder=3)
                last = max((minutes for of in line for minutes in of), default=None)
                place: dict[str, Any] = {"xytext": (0 if last is None else 6, 0), "textcoords": "offset points", "va": "center"}
                at = (first if last is None else last, y)
                axes.annotate(_missed(targets, line, seeds), at, color="0.3", fontsize=7, **place)
            axes.set(title=panel, xlabel="simulated minutes (logarithmic)", ylim=(0.4, len(names) + 0.6))
            if all_minutes:
                axes.set_xscale("log")
                axes.set_xlim(first / 1.2, max(all_minutes) * 1.3)
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks(range(len(names), 0, -1), names)
        handles = [Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=5) for marker, colour in looks]
        figure.legend(handles, targets, loc="outside upper center", ncols=len(targets), title=axis_name(found.study.metric))


def _missed(targets: Sequence[str], minutes: Sequence[Sequence[float]], seeds: int) -> str:
    """Return a remark on the targets that some seeds miss."""
    missed: dict[str, list[str]] = {}
    for target, of in zip(targets, minutes, strict=True):
        if len(of) < seeds:
            missed.setdefault(f"{len(of)} of {seeds} seeds" if of else "never", []).append(target)
    return "; ".join(f"{', '.join(these)}: {reached}" for reached, these in missed.items())


def _reached(run: Run, metric: str, target: float, lower_is_better: bool) -> Reached:
    measured, clock = run.curve(metric), run.curve(CLOCK)
    better = min if lower_is_better else max
    best = better(measured.values(), default=math.nan)
    there = (round for round, value in sorted(measured.items()) if (value <= target if lower_is_better else value >= target))
    first = next(there, None)
    return Reached(run.seed, first, math.inf if first is None else clock[first] / 60, best)


def _cell(reached: Sequence[Reached], std: str) -> str:
    """Return the mean where all seeds are there, or how many are, and the best value of those that are not."""
    there = [one.minutes for one in reached if one.round is not None]
    if len(there) < len(reached):
        best = statistics.fmean(one.best for one in reached if one.round is None)
        many = f"reached by {len(there)} of {len(reached)}" if there else "not reached"
        return f"{many} (best {best:.4g})"
    return cell_of(there, [one.seed for one in reached], std).shown(percent=False)
