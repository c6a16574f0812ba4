"""How long settings take to reach targets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedfacet.plots.figure import BLUE, ORANGE, VERMILION, saved_figure

_LOOKS = (("o", BLUE), ("s", ORANGE), ("D", VERMILION), ("^", "black"))

_PANELS_PER_ROW = 3


class Times(NamedTuple):
    """A setting of some seeds: per target the minutes of those that reach it, and a remark on targets that others miss."""

    name: str
    seeds: int
    minutes: Sequence[Sequence[float]]
    missed: str


def plot_times(panels: Mapping[str, Sequence[Times]], targets: Sequence[str], metric: str, path: Path) -> None:
    """Draw minutes to ``targets`` of a metric on a logarithmic axis, a panel per column of a table and a line per row.

    Each target has a marker: at the mean over seeds, hollow if some seeds miss the target, and small and pale for each seed.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    looks = [_LOOKS[place % len(_LOOKS)] for place in range(len(targets))]
    columns = min(len(panels), _PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    with saved_figure(path, 1.0 + 3.2 * columns, 0.5 + rows * (0.7 + 0.28 * len(names))) as figure:
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.axis("off")
        for axes, (panel, lines) in zip(grid, panels.items(), strict=False):
            all_minutes = [minutes for line in lines for of in line.minutes for minutes in of]
            first = min(all_minutes, default=1.0)
            for line in lines:
                y, means = len(names) - names.index(line.name), [sum(of) / len(of) for of in line.minutes if of]
                axes.plot(means, [y] * len(means), color="0.7", linewidth=1, zorder=1)
                for (marker, colour), of in zip(looks, line.minutes, strict=True):
                    axes.plot(of, [y] * len(of), marker, color=colour, markersize=3, alpha=0.35, markeredgewidth=0, zorder=2)
                    if of:
                        face = colour if len(of) == line.seeds else "white"
                        axes.plot(sum(of) / len(of), y, marker, color=colour, markerfacecolor=face, markersize=5, zorder=3)
                last = max((minutes for of in line.minutes for minutes in of), default=None)
                place = {"xytext": (0 if last is None else 6, 0), "textcoords": "offset points", "va": "center"}
                axes.annotate(line.missed, (first if last is None else last, y), color="0.3", fontsize=7, **place)
            axes.set(title=panel, xlabel="simulated minutes (logarithmic)", ylim=(0.4, len(names) + 0.6))
            if all_minutes:
                axes.set_xscale("log")
                axes.set_xlim(first / 1.2, max(all_minutes) * 1.3)
                axes.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{minutes:g}"))
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks(range(len(names), 0, -1), names)
        handles: list[Any] = [
            Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=5) for marker, colour in looks
        ]
        figure.legend(handles, targets, loc="outside upper center", ncols=len(targets), title=metric)
