"""A forest plot: differences and their intervals, one line each."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedfacet.plots.figure import BLUE, VERMILION, saved_figure

_VERDICTS = {"better": BLUE, "worse": VERMILION, "not significant": "0.55"}
_PANELS_PER_ROW = 3
_WIDE = 5.0
"""A line whose interval is so many times as long as the median of its panel would make the others unreadable."""


class Difference(NamedTuple):
    """A line of a panel: its name, the difference, its two 95 % intervals, and ``better``, ``worse`` or ``not significant``."""

    name: str
    mean: float
    t_interval: tuple[float, float]
    bootstrap_interval: tuple[float, float]
    verdict: str


def plot_forest(panels: Mapping[str, Sequence[Difference]], baseline: str, label: str, path: Path) -> None:
    """Draw differences from a baseline into a picture, a panel per column of a table.

    A point is a mean difference, the thin line its interval by Student's t, the thick one that by the bootstrap. Differences
    that are not significant are grey. A line that is far longer than the others of its panel leaves the frame: an arrow stands
    where it does, and its mean, if that lies outside. ``label`` names the unit.
    """
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    columns = min(len(panels), _PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    with saved_figure(path, max(5.0, 1.4 + 2.3 * columns), 0.7 + rows * (0.55 + 0.2 * len(names))) as figure:
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.axis("off")
        for axes, (panel, lines) in zip(grid, panels.items(), strict=False):
            axes.axvline(0, color="0.4", linewidth=0.9, zorder=1)
            for line in lines:
                y, colour = len(names) - names.index(line.name), _VERDICTS[line.verdict]
                axes.hlines(y, *line.t_interval, color=colour, linewidth=1, zorder=2)
                axes.hlines(y, *line.bootstrap_interval, color=colour, linewidth=3, alpha=0.5, zorder=2)
                axes.plot(line.mean, y, "o", color=colour, markersize=4, zorder=3)
            axes.set(title=panel, ylim=(0.4, len(names) + 0.6))
            _frame(axes, {len(names) - names.index(line.name): line for line in lines})
            axes.set_yticks(range(len(names), 0, -1), names)
        for axes in grid[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(label)
        handles = [Line2D([], [], color=colour, marker="o", markersize=4) for colour in _VERDICTS.values()]
        told = [f"better than {baseline}", f"worse than {baseline}", "not significant"]
        figure.legend(handles, told, loc="outside upper center", ncols=3)


def _frame(axes: Any, lines: Mapping[int, Difference]) -> None:
    """Fit the frame to lines at their heights, and mark those that leave it."""
    lengths = {y: line.t_interval[1] - line.t_interval[0] for y, line in lines.items() if math.isfinite(line.t_interval[0])}
    typical = median(lengths.values()) if lengths else 0.0
    wide = [y for y, length in lengths.items() if length > _WIDE * typical > 0]
    if not wide:
        return
    usual = [line for y, line in lines.items() if y not in wide]
    ends = [0.0, *(end for line in usual for end in (line.mean, *line.t_interval, *line.bootstrap_interval))]
    low, high = (limit(end for end in ends if math.isfinite(end)) for limit in (min, max))
    room = 0.08 * (high - low)
    low, high = low - room, high + room
    axes.set_xlim(low, high)
    for y in wide:
        line, colour = lines[y], _VERDICTS[lines[y].verdict]
        below, above = line.t_interval[0] < low, line.t_interval[1] > high
        for leaves, x, marker in ((below, low, "<"), (above, high, ">")):
            if leaves:
                axes.plot(x, y, marker, color=colour, markersize=5, clip_on=False, zorder=4)
        if not low <= line.mean <= high:
            at_left = line.mean < low
            axes.annotate(
                f"{line.mean:+.1f}",
                (low if at_left else high, y),
                (6 if at_left else -6, 2),
                textcoords="offset points",
                ha="left" if at_left else "right",
                va="bottom",
                color=colour,
                fontsize="small",
            )
