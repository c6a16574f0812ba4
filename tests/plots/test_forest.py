"""Forest plots: what can be read off them."""

import math
import re

from fedfacet.plots.forest import Difference, plot_forest


def line(name, mean, reach):
    return Difference(name, mean, (mean - reach, mean + reach), (mean - 0.8 * reach, mean + 0.8 * reach), "not significant")


USUAL = [line("a", 0.2, 1), line("b", -0.4, 1), line("c", 0.5, 1), line("d", 1, 1)]


def texts(path, lines):
    """Return what is written in a picture, its axes included."""
    plot_forest({"panel": lines}, "uniform", "points", path)
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))


def test_a_line_far_longer_than_the_others_leaves_the_frame(tmp_path):
    """The others keep their axis; the mean is told where it lies outside."""
    usual = texts(tmp_path / "usual.svg", USUAL)
    for mean, told in ((-18.64, {"-18.6"}), (0.3, set()), (40.0, {"+40.0"})):
        assert texts(tmp_path / "wide.svg", [*USUAL, line("wide", mean, 28)]) == usual | {"wide"} | told


def test_lines_of_like_length_stay_inside_and_no_interval_is_no_error(tmp_path):
    words = texts(tmp_path / "inside.svg", [*USUAL, line("more", 4, 4), line("alone", 2.0, math.nan)])
    assert {"8", "more", "alone"} <= words
    assert "8" in texts(tmp_path / "alone.svg", [*USUAL, line("wide", 0.3, 28), line("alone", 9.0, math.nan)])
