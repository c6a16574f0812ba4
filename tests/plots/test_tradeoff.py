"""Intervals stay within the frame; names beside points cover nothing."""

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedfacet.plots.tradeoff import Dot, Extent, plot_tradeoff


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Return a function that draws settings and returns the figure."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: (figures.append(figure), save(figure, *a, **b)))

    def drawn(dots):
        titles = ["all groups", "worst group"]
        plot_tradeoff({"d": dots}, titles, tmp_path / "a.png", x_label="x", y_label="y", chance=None, heads=("method", "k"))
        return figures.pop()

    return drawn


def dots(number, colour="k"):
    """Return settings of which every other one is hidden by its neighbour, with intervals as wide as all of them together."""
    places = [(0.02 * (k % 2) + k // 2, 70 + 3 * (k // 4)) for k in range(number)]
    return [
        Dot(f"method_{k}", colour, Extent(x, x - number, x + number), (Extent(y, y - 20, y + 20), Extent(y, y - 3, y + 40)))
        for k, (x, y) in enumerate(places)
    ]


def test_intervals_stay_within_the_frame(drawn):
    settings = dots(14)
    for place, axes in enumerate(drawn(settings).axes):
        (left, right), (down, up) = axes.get_xlim(), axes.get_ylim()
        assert left < min(dot.x.low for dot in settings)
        assert right > max(dot.x.high for dot in settings)
        assert down < min(dot.ys[place].low for dot in settings)
        assert up > max(dot.ys[place].high for dot in settings)


def test_each_point_has_its_name_beside_it(drawn):
    figure = drawn(dots(14))
    assert not figure.legends
    for axes in figure.axes:
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line that leads there
        assert sorted(text.get_text() for text in axes.texts) == sorted(f"method_{k}" for k in range(14))
        assert [(a, b) for k, a in enumerate(boxes) for b in boxes[:k] if a.overlaps(b)] == []
        points = [axes.transData.transform(text.xy) for text in axes.texts]
        assert [point for point in points for box in boxes if box.contains(*point)] == []
        frame = axes.get_window_extent()
        assert all(frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1) for box in boxes)


def test_points_that_share_a_marker_have_a_legend(drawn):
    figure = drawn([*dots(3), *dots(3, "l")])
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == []
    (legend,) = figure.legends
    assert {"method_0", "k", "l"} <= {text.get_text() for text in legend.get_texts()}
