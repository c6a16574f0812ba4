"""Pictures of heterogeneity triplets: of a federation's clients, of several federations, and of what clients disclosed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfacet.heterogeneity import HeterogeneityTriplet, InteractionMatrix, measure_federation
from fedfacet.metrics.estimation import Triplets, measure_estimation
from fedfacet.plots import crowd
from fedfacet.plots.run import MEASURES, TYPE_COLOURS, TYPES, draw_measures
from fedfacet.plots.style import BLUE, DASHES, saved_figure, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EDGE_COLOURS = {"CI": "#9A7B00", "AI": "#1F7A5C", "SC": "#7A4E97", "none": "#6E6E6E"}
_MEAN: Any = {"color": "0.4", "linewidth": 0.9, "linestyle": DASHES, "zorder": 1}
_POOLED: Any = {"color": "0.4", "linewidth": 0.9, "zorder": 1}
_SMALLEST, _ALL_CLIENTS = 62.0, 320.0  # areas of bubbles, in points squared
_ALIKE = 0.02
_PANELS_PER_ROW = 4


def plot_triplets(matrices: Sequence[InteractionMatrix], path: Path) -> None:
    """Draw every client's triplet into a PNG as a point, seen from the three sides of the cube that it lies in.

    Clients that look alike from a side share a bubble there, whose area grows with their number, printed inside where it is
    more than one; colours are the clients' types. More than ``crowd.MOST_BARS`` clients are dots. Dashed lines cross at the
    mean of the clients, solid ones at the pooled data.
    """
    from matplotlib.lines import Line2D

    measured = measure_federation(matrices)
    types = [matrix.type for matrix in matrices]
    counts = Counter(types)
    kinds = [kind for kind in TYPES if counts[kind]]
    with saved_figure(path, 7.6, 2.75) as figure:
        for axes, (x, y) in zip(figure.subplots(1, 3), ((0, 1), (0, 2), (1, 2)), strict=True):
            _draw_bubbles(axes, measured.clients, types, x, y)
            for triplet, style in ((measured.client_mean, _MEAN), (measured.global_triplet, _POOLED)):
                axes.axvline(triplet[x], **style)
                axes.axhline(triplet[y], **style)
            axes.set(xlabel=MEASURES[x], ylabel=MEASURES[y], xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), aspect="equal")
            axes.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        handles = [
            *(Line2D([], [], linestyle="", marker="o", markersize=7, **_bubble(kind)) for kind in kinds),
            *(Line2D([], [], **style) for style in (_MEAN, _POOLED)),
        ]
        names = [f"{counts[kind]} {'client' if counts[kind] == 1 else 'clients'} of type {kind}" for kind in kinds]
        if len(types) > crowd.MOST_BARS:
            names = [f"{counts[kind]} {kind}" for kind in kinds]  # or the legend would be wider than the picture
        figure.legend(handles, [*names, "mean of clients", "all data pooled"], loc="outside upper center", ncols=len(handles))


def plot_federations(federations: Mapping[str, Sequence[InteractionMatrix]], path: Path) -> None:
    """Draw the six measures of several federations into a PNG, a panel each (FedDiverse, arXiv:2504.11216, figure 3)."""
    columns = math.ceil(len(federations) / math.ceil(len(federations) / _PANELS_PER_ROW))
    shared: Any = {"per_row": columns, "sharex": True, "sharey": True}

    def size(rows: int, columns: int) -> tuple[float, float]:
        return 1.9 * columns + 0.4, 1.75 * rows + 0.4

    with saved_panels(path, len(federations), size, **shared) as (figure, grid):
        for axes, (name, matrices) in zip(grid, federations.items(), strict=True):
            draw_measures(axes, matrices, fontsize=6)
            axes.set_title(f"{name} ({len(matrices)} {'client' if len(matrices) == 1 else 'clients'})")
            axes.set_xticks(range(3), ["CI", "AI", "SC"])
            axes.tick_params(axis="x", labelbottom=True)
        for axes in grid[::columns]:
            axes.set_ylabel("measure, from 0 to 1")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def plot_estimation(triplets: Triplets, path: Path) -> None:
    """Draw into a PNG what clients disclosed over the truth, a panel per measure; on the dashed line they are equal.

    Clients within 0.02 of each other share a bubble, whose area grows with their number. Above each panel stand the mean
    absolute error and the correlation over the clients.
    """
    error = measure_estimation(triplets)
    with saved_figure(path, 7.6, 3.1) as figure:
        for column, (axes, measure) in enumerate(zip(figure.subplots(1, 3), HeterogeneityTriplet._fields, strict=True)):
            pairs = np.rint(np.stack([triplets.true[:, column], triplets.disclosed[:, column]], axis=1) / _ALIKE)
            cells = Counter(map(tuple, pairs.tolist()))
            axes.plot([0, 1], [0, 1], color="0.4", linewidth=0.9, linestyle=DASHES, zorder=1)
            sizes = [14 + _ALL_CLIENTS * number / len(triplets.clients) for number in cells.values()]
            style: Any = {"color": BLUE, "alpha": 0.6, "edgecolor": "#003F63", "linewidth": 0.6, "zorder": 2, "clip_on": False}
            axes.scatter(*(_ALIKE * np.array(list(cells)).T), s=sizes, **style)
            correlation = error["correlation"][measure]
            correlated = "no correlation" if np.isnan(correlation) else f"correlation {correlation:.2f}"
            title = f"{MEASURES[column]}\nmean error {error['mean_absolute_error'][measure]:.3f}, {correlated}"
            axes.set(title=title, xlabel="true", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal")
            axes.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
            if column == 0:
                axes.set_ylabel("disclosed by the client")
        figure.suptitle(
            f"{error['clients']} clients: distance between true and disclosed triplets {error['distance_mean']:.3f} on "
            f"average, {error['distance_max']:.3f} at most",
            fontsize=8,
        )


def _draw_bubbles(axes: "Axes", triplets: Sequence[HeterogeneityTriplet], types: Sequence[str], x: int, y: int) -> None:
    """Draw clients as seen from one side, many beneath few."""
    if len(triplets) > crowd.MOST_BARS:
        seen = np.array(triplets)[:, [x, y]]
        axes.scatter(
            seen[:, 0], seen[:, 1], s=2.5, alpha=0.3, linewidth=0, color=[_EDGE_COLOURS[kind] for kind in types], zorder=3
        )
        return
    alike: dict[tuple[int, int, str], list[HeterogeneityTriplet]] = {}
    for triplet, kind in zip(triplets, types, strict=True):
        alike.setdefault((round(triplet[x] / _ALIKE), round(triplet[y] / _ALIKE), kind), []).append(triplet)
    for (_, _, kind), clients in sorted(alike.items(), key=lambda entry: -len(entry[1])):
        at_x, at_y = np.mean(clients, axis=0)[[x, y]]
        size = math.sqrt(_SMALLEST + (_ALL_CLIENTS - _SMALLEST) * len(clients) / len(triplets))
        axes.plot(at_x, at_y, "o", markersize=size, **_bubble(kind), zorder=3)
        if len(clients) > 1:
            axes.text(at_x, at_y, str(len(clients)), ha="center", va="center", fontsize=6, zorder=4)


def _bubble(kind: str) -> dict[str, Any]:
    return {"color": TYPE_COLOURS[kind], "markeredgecolor": _EDGE_COLOURS[kind], "markeredgewidth": 0.9}
