"""Several runs in one picture: a metric by round, mean and band over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet.plots.style import COLOURS, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = ("black", *COLOURS)
LINES = ("-", "--", ":", "-.")


class Band(NamedTuple):
    """A line with what surrounds it, all of R rounds, which are drawn at ``places_R``."""

    name: str
    places_R: NDArray[np.float64]
    mean_R: NDArray[np.float64]
    low_R: NDArray[np.float64]
    high_R: NDArray[np.float64]


def plot_bands(
    panels: Mapping[str, Sequence[Band]], label: str, path: Path, *, threshold: float | None = None, across: str = "round"
) -> None:
    """Draw lines with their bands into a picture, a panel per column of a table.

    A name has one colour in all panels. ``label`` says what is drawn upwards, ``across`` what to the right. ``threshold`` is
    a horizontal line.
    """
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(band.name for bands in panels.values() for band in bands))
    looks: dict[str, dict[str, Any]] = {
        name: {"color": INK[place % len(INK)], "linestyle": LINES[place // len(INK) % len(LINES)]}
        for place, name in enumerate(names)
    }

    def size(rows: int, columns: int) -> tuple[float, float]:
        return 2.2 + 2.6 * columns, max(0.5 + 2.1 * rows, 0.4 + 0.16 * len(names))

    with saved_panels(path, len(panels), size, sharey=True) as (figure, grid):
        for axes, (panel, bands) in zip(grid, panels.items(), strict=True):
            draw_bands(axes, bands, looks)
            if threshold is not None:
                axes.axhline(threshold, color="0.4", linewidth=0.8)
            axes.set(title=panel, xlabel=across)
            if across == "round":
                axes.locator_params(axis="x", integer=True)
        for axes in grid[::3]:
            axes.set_ylabel(label)
        handles = [Line2D([], [], **looks[name]) for name in names]
        figure.legend(handles, names, loc="outside right upper")


def draw_bands(axes: "Axes", bands: Sequence[Band], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw lines with their bands into one panel; ``looks`` has the colour and the style of each name's line."""
    for band in bands:
        axes.fill_between(band.places_R, band.low_R, band.high_R, color=looks[band.name]["color"], alpha=0.15, linewidth=0)
        marker = "o" if len(band.places_R) == 1 else None  # a line of one point would not be seen
        axes.plot(band.places_R, band.mean_R, linewidth=1.2, marker=marker, **looks[band.name])
