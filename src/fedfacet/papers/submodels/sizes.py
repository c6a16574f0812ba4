"""The thesis' figure 7a: how much a client's model gives away, over how many samples the client has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet.plots.style import COLOURS, DASHES, saved_panels

_MARKERS, _LINES = "os^DvP", ("-", (0, (6, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))


def plot_sizes(points: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], path: Path, fit: float | None = None) -> None:
    """Draw the advantage of ``loss_threshold`` on each client over the client's samples, a panel per data set.

    Source: the thesis, figure 7a. Markers and colours are widths of the network. Lines are least squares over the logarithm of
    the samples, with Pearson's r of table 8 in the legend. Dashes: an attack that knows nothing.

    Args:
        points: data set -> width -> samples and advantage in [-1, 1] of every client of every run.
        path: of the picture.
        fit: a width in inches that the picture must have, ``None`` for any.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    def size(rows: int, columns: int) -> tuple[float, float]:
        return 0.4 + 3.2 * columns, 3.0 * rows

    with saved_panels(path, len(points), size, fit=fit) as (_, grid):
        for axes, (dataset, of) in zip(grid, points.items(), strict=True):
            for number, (width, found) in enumerate(of.items()):
                colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
                samples, advantages = np.array(found, dtype=np.float64).T
                label, logs = f"width {width}", np.log10(samples)
                look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
                if len(found) > 2 and np.ptp(logs) and np.ptp(advantages):
                    ends = np.array([logs.min(), logs.max()])
                    line = np.polyval(np.polyfit(logs, 100 * advantages, 1), ends)
                    axes.plot(10**ends, line, color=colour, linestyle=_LINES[number % len(_LINES)], linewidth=1.1)
                    label += f", r = {np.corrcoef(logs, advantages)[0, 1]:.2f}"
                hollow = "white" if number % 2 else colour
                axes.plot(samples, 100 * advantages, linestyle="none", markerfacecolor=hollow, label=label, **look)
            axes.axhline(0, color="0.4", linestyle=DASHES, linewidth=0.8)
            axes.set(xscale="log", xlabel="samples of a client")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(LogLocator(subs="all"))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, title=dataset if len(points) > 1 else None)
        for axes in grid[:: len(grid) if fit is None else 1]:
            axes.set_ylabel("advantage of the loss threshold (%)")
