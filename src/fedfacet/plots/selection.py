"""Who was selected, round by round."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.plots import crowd
from fedfacet.plots.figure import saved_figure
from fedfacet.plots.run import TYPE_COLOURS, in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROUNDS = 100
"""Columns of a heat map; more rounds are put together, or a column would be thinner than a dot."""

_MOST_ROWS, _ACROSS = 6, 3
"""Rows of one column that stand below each other, and columns in which more than these stand."""


def plot_selections(
    chosen: Mapping[tuple[str, str], NDArray[np.bool_]], types: Mapping[tuple[str, str], Sequence[str]], path: Path
) -> None:
    """Draw a heat map of rounds and clients per setting into a picture, clients sorted by type, which a strip beside it shows.

    Many rows of one column stand in three columns.

    Args:
        chosen: (row, column) -> who was selected, shape (R, K).
        types: (row, column) -> one of ``TYPES`` per client.
        path: of the picture; its folder is made if need be.
    """
    rows, columns = (list(dict.fromkeys(key[place] for key in chosen)) for place in (0, 1))
    wrapped = len(columns) == 1 and len(rows) > _MOST_ROWS
    height, width = (math.ceil(len(rows) / _ACROSS), _ACROSS) if wrapped else (len(rows), len(columns))
    with saved_figure(path, 1.2 + 3.4 * width, 0.6 + 1.5 * height) as figure:
        grid: Any = figure.subplots(height, width, squeeze=False)
        panels = [(row, column) for row in rows for column in columns]
        for place, axes in enumerate(grid.ravel()):
            row, column = panels[place] if place < len(panels) else ("", "")
            if (row, column) not in chosen:
                axes.set_axis_off()
                continue
            draw_selection(axes, chosen[row, column], types[row, column])
            if wrapped:
                axes.set_title(row)
            elif row == rows[0] and len(columns) > 1:
                axes.set_title(column)
            if column == columns[0] and not wrapped:
                axes.set_ylabel(row, rotation=0, ha="right", va="center")
            if row in (rows[-width:] if wrapped else rows[-1:]):
                axes.set_xlabel("round")
        many = any(chosen_RK.shape[1] > crowd.MOST_BARS for chosen_RK in chosen.values())
        dark = "(the more the darker), several clients a line" if many else "(dark), a line per client"
        figure.suptitle(f"Who was selected {dark}, sorted by type", fontsize=8)


def draw_selection(axes: "Axes", chosen_RK: NDArray[np.bool_], types: Sequence[str]) -> None:
    """Draw one heat map of rounds and clients; of more than ``crowd.MOST_BARS`` some share a line, black the darkest."""
    from matplotlib.ticker import MaxNLocator

    order = in_order(types)
    rounds, number = len(chosen_RK), len(order)
    edges = crowd.neighbours([number]) if number > crowd.MOST_BARS else None  # of one height each, as the picture's dots are
    parts = (part[:, order].mean(axis=0) for part in np.array_split(chosen_RK, min(_MOST_ROUNDS, rounds)))
    shares_KR = np.stack([part if edges is None else crowd.means(part, edges) for part in parts], axis=1)
    sorted_types = [types[client] for client in order.tolist()]
    darkest = 1.0
    if edges is not None:
        darkest = float(shares_KR.max()) or 1.0
    axes.imshow(shares_KR, aspect="auto", cmap="Greys", vmin=0, vmax=darkest, extent=(0.5, rounds + 0.5, number, 0))
    for kind in dict.fromkeys(sorted_types):
        start, count = sorted_types.index(kind), sorted_types.count(kind)
        strip: dict[str, Any] = {"color": TYPE_COLOURS[kind], "clip_on": False, "linewidth": 0}
        axes.barh(start + count / 2, -0.06 * rounds, height=count, left=0.5, **strip)
        axes.text(0.5 - 0.03 * rounds, start + count / 2, kind, ha="center", va="center", fontsize=6)
    axes.set(xlim=(0.5 - 0.06 * rounds, rounds + 0.5), ylim=(number, 0), yticks=[])
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True).tick_values(0, rounds)
    axes.set_xticks([tick for tick in ticks if 1 <= tick <= rounds])
    axes.spines[:].set_visible(False)
