"""Names beside points, none over another."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

_DISTANCES = (5, 7, 9, 13, 18, 24, 31, 39, 48, 58, 70, 84, 100)  # of a name from its point, in points
_DIRECTIONS = 16
_REACH = 3.5  # of a point's marker, in points
_SIZE = 7  # of a name's letters
_NEAR = 13  # further away, a line leads from the point to its name


class Point(NamedTuple):
    """A point of a panel, its name and its colour."""

    name: str
    x: float
    y: float
    ink: str


def label_points(figure: "Figure", panels: Sequence[tuple[Any, Sequence[Point]]]) -> None:
    """Write each point's name beside it, where it covers neither another name nor a point.

    Call it last: it sets names for where the points are now, so it fixes the layout of ``figure``. ``panels`` are axes with
    their points.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    unit = figure.dpi / 72
    for axes, points in panels:
        places = [axes.transData.transform((x, y)) for _, x, y, _ in points]
        reach = _REACH * unit
        taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in places]
        frame = axes.get_window_extent()
        choices = []
        for (name, _, _, _), (x, y) in zip(points, places, strict=True):
            width, height = _size_of(figure, name)
            choices.append([
                (away, right, up, Bbox.from_bounds(x + right * unit - width / 2, y + up * unit - height / 2, width, height))
                for away, right, up in _around(width / unit, height / unit)
            ])  # fmt: skip
        free = [sum(_free(choice[3], frame, taken) for choice in of) for of in choices]
        for place in sorted(range(len(points)), key=lambda place: free[place]):  # the one with the least room first
            name, *at, ink = points[place]
            fitting = (choice for choice in choices[place] if _free(choice[3], frame, taken))
            away, right, up, box = next(fitting, choices[place][0])
            taken.append(box)
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": ink, "shrinkA": 0, "shrinkB": 2}
            axes.annotate(
                *(name, at, (right, up)), textcoords="offset points", ha="center", va="center", fontsize=_SIZE, color=ink,
                arrowprops=line if away >= _NEAR else None, path_effects=[withStroke(linewidth=1.5, foreground="white")],
                zorder=4,
            )  # fmt: skip


def _size_of(figure: "Figure", name: str) -> tuple[float, float]:
    """Return how wide and how high a name is, in pixels."""
    text = figure.text(0, 0, name, fontsize=_SIZE)
    box = text.get_window_extent()
    text.remove()
    return box.width, box.height


def _free(box: "Bbox", frame: "Bbox", taken: Sequence["Bbox"]) -> bool:
    """Tell whether a box is within the frame and covers nothing that is there already."""
    within = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    return within and not any(box.overlaps(other) for other in taken)


def _around(width: float, height: float) -> Iterator[tuple[float, float, float]]:
    """Yield distances from a point, nearest first, and where the middle of a name of some size is then.

    Of one distance, diagonals come first: there a name covers neither of the two intervals of the point.
    """
    angles = sorted((2 * math.pi * turn / _DIRECTIONS for turn in range(_DIRECTIONS)), key=lambda a: -abs(math.sin(2 * a)))
    for away in _DISTANCES:
        for angle in angles:
            right, up = math.cos(angle), math.sin(angle)
            yield away, away * right + width / 2 * _edge(right), away * up + height / 2 * _edge(up)


def _edge(towards: float) -> float:
    """Return which edge of a name faces the point, from -1 to 1; on a diagonal it is a corner."""
    return max(-1.0, min(1.0, math.sqrt(2) * towards))
