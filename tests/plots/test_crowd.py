"""Pictures of thousands of clients: of one size, and still true."""

import numpy as np
import pytest
from PIL import Image

from fedfacet.analysis.selection import Selection, draw_selection
from fedfacet.analysis.study import Study
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.plots import crowd
from fedfacet.plots import run as plots
from fedfacet.plots.triplets import plot_triplets

MANY = crowd.MOST_BARS + 1001
KINDS = {"CI": [[9, 9], [1, 1]], "AI": [[9, 1], [9, 1]], "SC": [[9, 1], [1, 9]]}


def federation(number):
    """A sixth of the clients is CI, a third AI, half SC; all have 20 samples."""
    kinds = ["CI"] * (number // 6) + ["AI"] * (number // 3)
    kinds += ["SC"] * (number - len(kinds))
    return [InteractionMatrix(KINDS[kind]) for kind in kinds], kinds


def is_small(path):
    with Image.open(path) as picture:
        return max(picture.size) < 3000


@pytest.mark.slow
def test_no_picture_grows_with_its_clients(tmp_path):
    matrices, types = federation(25_000)
    plots.plot_partition(matrices, tmp_path / "partition.png")
    plots.plot_selection(np.arange(25_000).tolist(), types, tmp_path / "selection.png", rounds=25_000)
    plot_triplets(matrices, tmp_path / "triplets.png")
    assert all(map(is_small, tmp_path.iterdir()))


def test_triplets_of_thousands_share_bubbles(tmp_path):
    plot_triplets(federation(MANY)[0], tmp_path / "triplets.png")
    assert is_small(tmp_path / "triplets.png")


def test_areas_of_a_large_partition_are_the_mean_counts_and_the_shares_of_types(tmp_path, area):
    path = tmp_path / "partition.png"
    plots.plot_partition(federation(MANY)[0], path)
    assert is_small(path)
    areas = np.array([area(path, colour) for colour in plots._group_colours(2, 2)], dtype=float)
    # Of 20 samples: 9, 9 / 6 + 1 / 3 + 1 / 2, and so on; lines over them are what is not exact. Every other one is hatched.
    for alike, expected in ((areas[::2], np.array([9, 11 / 3])), (areas[1::2], np.array([14 / 6, 5]))):
        np.testing.assert_allclose(alike / alike.sum(), expected / expected.sum(), atol=0.03)
    shares = np.array([area(path, plots.TYPE_COLOURS[kind]) for kind in ("CI", "AI", "SC")])
    np.testing.assert_allclose(shares / shares.sum(), [1 / 6, 1 / 3, 1 / 2], atol=0.03)


def test_areas_of_a_large_selection_are_the_participations(tmp_path, area):
    """Whoever took part, and whoever stands next to whom."""
    types = federation(MANY)[1]
    bars = []
    for counts in ([10] * MANY, [10, 0] * (MANY // 2) + [10] * (MANY % 2), np.random.default_rng(0).permutation(MANY) % 11):
        plots.plot_selection(counts, types, tmp_path / "selection.png", rounds=10)
        assert is_small(tmp_path / "selection.png")
        bars.append(area(tmp_path / "selection.png", plots._HUES[0]))
    np.testing.assert_allclose(np.array(bars) / bars[0], [1, 1 / 2, 1 / 2], atol=0.02)


def test_columns_keep_to_their_type_and_hold_everybody_once():
    sizes = [1, 2, 30_000, 7, 400]
    edges = crowd.neighbours(sizes)
    assert set(np.cumsum([0, *sizes])) <= set(edges.tolist())
    assert (np.diff(edges) > 0).all()
    assert len(edges) < 320
    values = np.arange(edges[-1], dtype=float)
    assert crowd.means(values, edges) @ np.diff(edges) == pytest.approx(values.sum())
    low, middle, high = crowd.quantiles(values, edges, (0, 0.5, 1))
    assert (low == edges[:-1]).all()
    assert (high == edges[1:] - 1).all()
    assert (middle == (low + high) / 2).all()


def test_who_is_selected_of_many_can_be_seen(tmp_path, area):
    """A hundredth of the clients a round would leave a picture white in which one line stood for every client."""
    types = federation(MANY)[1]
    chosen = np.zeros((50, MANY), dtype=bool)
    dark = []
    for seen in (0, 30):  # of the first 30 every tenth, always the same
        chosen[:, :seen:10] = True
        found = Selection(Study([], [], [], ""), {}, {}, {("uniform", ""): chosen}, {("uniform", ""): types}, {}, "", ())
        draw_selection(found, tmp_path / "selection.png")
        dark.append(area(tmp_path / "selection.png", "black"))
    assert dark[1] - dark[0] > 200
