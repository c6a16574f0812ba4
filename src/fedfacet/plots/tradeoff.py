"""What models give away against how well they do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedfacet.plots.figure import COLOURS, DASHES, saved_figure
from fedfacet.plots.labels import Point, label_points

_INK = ("black", *COLOURS)
_MARKERS = (*"osD^vP*X<>pdh", (4, 1, 45), (3, 1, 0), (6, 1, 0))  # of matplotlib; the last are stars of so many points


class Extent(NamedTuple):
    """A mean and its interval, whose ends are the mean where there is none."""

    mean: float
    low: float
    high: float


class Dot(NamedTuple):
    """A setting: ``marker`` and ``colour`` name what tells it from others, ``ys`` are its heights in the panels."""

    marker: str
    colour: str
    x: Extent
    ys: tuple[Extent | None, ...]


def plot_tradeoff(
    rows: Mapping[str, Sequence[Dot]],
    titles: Sequence[str],
    path: Path,
    *,
    x_label: str,
    y_label: str,
    chance: float | None,
    heads: tuple[str, str],
) -> None:
    """Draw a row of panels per data set into a picture; in each the further up and left, the better.

    Where a data set has one dot per marker, each dot has its name beside it. Otherwise a legend names markers and colours.

    Args:
        rows: data set -> settings.
        titles: of a row's panels. All but the last share their heights: that is the server's.
        path: of the picture.
        x_label: what goes to the right.
        y_label: what goes up.
        chance: where a vertical line of dashes stands; ``None`` for nowhere.
        heads: what markers and colours stand for.
    """
    from matplotlib.lines import Line2D

    dots = [dot for of in rows.values() for dot in of]
    markers, colours = (list(dict.fromkeys(dot[place] for dot in dots)) for place in (0, 1))
    named = all(len({dot.marker for dot in of}) == len(of) for of in rows.values())
    looks = {name: "o" if named else _MARKERS[place % len(_MARKERS)] for place, name in enumerate(markers)}
    inks = {name: _INK[place % len(_INK)] for place, name in enumerate(markers if named else colours)}
    entries = len(markers) + len(colours) + 3
    width = 3.4 * len(titles) if named else 2.0 + 2.5 * len(titles)
    height = 0.3 + 3.2 * len(rows) if named else max(0.5 + 2.2 * len(rows), 0.4 + 0.16 * entries)
    with saved_figure(path, width, height) as figure:
        grid = figure.subplots(len(rows), len(titles), sharex="row", squeeze=False)
        panels = []
        for line, (dataset, of) in zip(grid, rows.items(), strict=True):
            alike = len({dot.colour for dot in of}) == 1
            for place, (axes, title) in enumerate(zip(line, titles, strict=True)):
                points = []
                for dot in of:
                    if (y := dot.ys[place]) is not None:
                        ink = inks[dot.marker if named else dot.colour]
                        _draw(axes, dot.x, y, looks[dot.marker], ink)
                        name = dot.marker if alike or dot.marker == dot.colour else f"{dot.marker}, {dot.colour}"
                        points.append(Point(name, dot.x.mean, y.mean, ink))
                panels.append((axes, points))
                if chance is not None:
                    axes.axvline(chance, color="0.4", linestyle=DASHES, linewidth=0.8, zorder=1)
                shared = range(len(titles) - 1) if place < len(titles) - 1 else [place]
                heights = [end for dot in of for panel in shared if (y := dot.ys[panel]) is not None for end in y]
                axes.set_xlim(_frame([*(end for dot in of for end in dot.x), *([] if chance is None else [chance])]))
                if heights:
                    axes.set_ylim(_frame(heights))
                axes.set(title=f"{dataset}: {title}" if len(rows) > 1 else title, xlabel=x_label)
            line[0].set_ylabel(y_label)
        if named:
            label_points(figure, panels)
            return
        blank: dict[str, Any] = {"linestyle": "none", "marker": "none"}
        handles = [
            Line2D([], [], **blank, label=heads[0]),
            *(Line2D([], [], linestyle="none", marker=looks[name], color="0.3", markersize=5, label=name) for name in markers),
            Line2D([], [], **blank, label=""),
            Line2D([], [], **blank, label=heads[1]),
            *(Line2D([], [], linestyle="none", marker="o", color=inks[name], markersize=5, label=name) for name in colours),
        ]
        figure.legend(handles=handles, loc="outside right upper")


def _frame(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 0.25)
    return low - room, high + room


def _draw(axes: Any, x: Extent, y: Extent, marker: Any, colour: str) -> None:
    axes.plot([x.low, x.high], [y.mean, y.mean], color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    axes.plot([x.mean, x.mean], [y.low, y.high], color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}
    axes.plot(x.mean, y.mean, marker=marker, linestyle="none", color=colour, markersize=5.5, zorder=3, **edge)
