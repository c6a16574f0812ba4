import numpy as np
import pytest
from matplotlib.image import imread

from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.plots import run, triplets

CI, AI, SC = ([[9, 9], [1, 1]], [[9, 1], [9, 1]], [[9, 1], [1, 9]])


def matrices(*counts):
    return [InteractionMatrix(count) for count in counts]


def test_bubbles_have_the_colours_of_the_clients_types(tmp_path, area):
    path = tmp_path / "a" / "triplets.png"
    triplets.plot_triplets(matrices(CI, CI, AI), path)
    seen = {kind: area(path, colour) for kind, colour in run.TYPE_COLOURS.items()}
    assert seen["CI"] > seen["AI"] > 100 > max(seen["SC"], seen["none"])
    assert [file.name for file in path.parent.iterdir()] == ["triplets.png"]


def test_equal_clients_share_a_bubble(tmp_path, monkeypatch):
    """Seen from each of three sides, 5 + 1 clients are two bubbles, of which one says 5."""
    texts, bubbles = [], []
    draw = triplets._draw_bubbles

    def watched(axes, *arguments):
        draw(axes, *arguments)
        texts.extend(text.get_text() for text in axes.texts)
        bubbles.extend(tuple(np.ravel(line.get_xydata()).round(3)) for line in axes.lines)

    monkeypatch.setattr(triplets, "_draw_bubbles", watched)
    triplets.plot_triplets(matrices(*[CI] * 5, SC), tmp_path / "triplets.png")
    assert texts == ["5"] * 3
    imbalance = InteractionMatrix(CI).triplet.class_imbalance
    correlation = InteractionMatrix(SC).triplet.spurious_correlation
    sides = [[(imbalance, 0), (0, 0)], [(imbalance, 0), (0, correlation)], [(0, 0), (0, correlation)]]
    np.testing.assert_allclose(bubbles, np.concatenate(sides), atol=1e-3)


@pytest.mark.parametrize("number", [1, 2, 5, *(pytest.param(number, marks=pytest.mark.slow) for number in (4, 6, 7, 9))])
def test_any_number_of_federations_has_room(tmp_path, number):
    """Matplotlib warns where a layout does not work out, and warnings are errors here."""
    federations = {f"a_federation_{position}": matrices(CI, AI, SC) for position in range(number)}
    triplets.plot_federations(federations, tmp_path / "federations.png")
    height, width, _ = imread(tmp_path / "federations.png").shape
    assert width >= 300
    assert height >= 300


def test_bars_are_the_measures(tmp_path, area):
    """A federation of one client: what is pooled is the client, so both bars are equally tall."""
    areas = []
    for count in (1, 2):
        triplets.plot_federations({"gsc": matrices(*[SC] * count)}, tmp_path / "federations.png")
        areas.append([area(tmp_path / "federations.png", grey) for grey in ("0.3", "0.7")])
    assert areas[0] == pytest.approx(areas[1], rel=0.05)
    assert areas[0][0] == pytest.approx(areas[0][1], rel=0.05)
    triplets.plot_federations({"gsc": matrices(SC, [[1, 9], [9, 1]])}, tmp_path / "federations.png")
    pooled, mean = (area(tmp_path / "federations.png", grey) for grey in ("0.3", "0.7"))
    assert pooled < 0.4 * mean, "two opposite correlations cancel in the pooled data; what is left is the legend"
