import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from fedfacet.callbacks.summary import Summary
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.plots import run as plots
from fedfacet.plots.style import COLOURS
from fedfacet.records import Ledger, RoundResult

BAR = "#0072B2"


def random_matrices(num_clients, shape):
    return [InteractionMatrix(counts) for counts in np.random.default_rng(0).integers(0, 50, (num_clients, *shape))]


def write_metrics(path, rows):
    with open(path, "w", newline="") as target:
        writer = csv.DictWriter(target, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def measured(rounds, groups=("y0_a0", "y0_a1", "y1_a0", "y1_a1")):
    """Rows as CsvLog writes them, of a run that learns."""
    rows = []
    for number in range(1, rounds + 1):
        accuracies = {key: 0.5 + 0.4 * number / rounds + 0.01 * position for position, key in enumerate(groups)}
        row = {"round": number, "cohort": "0 1", "train/loss": 1 / number}
        for split in ("val", "test"):
            row |= {f"{split}/acc": np.mean(list(accuracies.values())), f"{split}/acc_worst_group": min(accuracies.values())}
            row |= {f"{split}/acc_group/{key}": accuracy for key, accuracy in accuracies.items()}
        rows.append(row)
    return rows


def test_areas_of_the_partition_are_the_counts(tmp_path, area):
    path = tmp_path / "partition.png"
    plots.plot_partition([InteractionMatrix([[60, 30], [90, 20]]), InteractionMatrix([[20, 50], [70, 60]])], path)
    colours = plots._group_colours(2, 2)
    areas = np.array([area(path, colour) for colour in colours], dtype=float)
    # The legend's patches and the bars' blurred edges are what is not exact. Hatches cover a part of every other group.
    np.testing.assert_allclose(areas[::2] / areas[::2].sum(), np.array([80, 160]) / 240, atol=0.01)
    np.testing.assert_allclose(areas[1::2] / areas[1::2].sum(), np.array([80, 80]) / 160, atol=0.02)
    assert areas[1] < 0.85 * areas[0], "the second attribute value is hatched"


def test_the_strip_beneath_the_clients_shows_their_types(tmp_path, area):
    ci, ai, sc = InteractionMatrix([[9, 9], [1, 1]]), InteractionMatrix([[9, 1], [9, 1]]), InteractionMatrix([[9, 1], [1, 9]])
    plots.plot_partition([ci, ai, ai, sc, sc, sc], tmp_path / "partition.png")
    areas = np.array([area(tmp_path / "partition.png", plots.TYPE_COLOURS[kind]) for kind in ("CI", "AI", "SC")])
    np.testing.assert_allclose(areas / areas[0], [1, 2, 3], rtol=0.1)
    assert area(tmp_path / "partition.png", plots.TYPE_COLOURS["none"]) < 0.02 * areas[0]


@pytest.mark.parametrize(
    ("num_clients", "shape"), [(1, (2, 2)), (24, (100, 1)), pytest.param(100, (4, 2), marks=pytest.mark.slow)]
)
def test_pictures_of_all_sizes_have_room(tmp_path, num_clients, shape, area):
    # Matplotlib warns where a layout does not work out, and warnings are errors here.
    path = tmp_path / "a" / "partition.png"
    plots.plot_partition(random_matrices(num_clients, shape), path)
    height, width, _ = imread(path).shape
    assert width >= 1500
    # A legend too wide would squeeze the bars, which take a quarter of the picture.
    assert area(path, *plots._group_colours(*shape)) / (height * width) > 0.18
    assert [file.name for file in path.parent.iterdir()] == ["partition.png"]


def test_names_of_classes_and_attributes_make_another_picture(tmp_path):
    matrices = random_matrices(3, (2, 2))
    plots.plot_partition(matrices, tmp_path / "numbers.png")
    plots.plot_partition(
        matrices, tmp_path / "names.png", class_names=["cat", "$dog_1"], attribute_names=["indoors", "in [the] woods"]
    )
    assert (tmp_path / "numbers.png").read_bytes() != (tmp_path / "names.png").read_bytes()


def test_areas_of_the_selection_are_the_participations(tmp_path, area):
    types = ["SC", "CI", "SC", "AI", "SC", "SC"]
    bars, backgrounds = [], []
    for counts in ([0, 0, 0, 0, 0, 10], [5, 10, 0, 10, 5, 10]):
        plots.plot_selection(counts, types, tmp_path / "selection.png", rounds=10)
        bars.append(area(tmp_path / "selection.png", BAR))
        backgrounds.append([area(tmp_path / "selection.png", plots.TYPE_COLOURS[kind]) for kind in plots.TYPES])
    assert bars[1] / bars[0] == pytest.approx(4, rel=0.05)
    ci, ai, sc, none = backgrounds[0]
    assert ai == pytest.approx(ci, rel=0.1)
    assert sc == pytest.approx(4 * ci - bars[0], rel=0.1)
    assert none < 0.02 * ci


@pytest.mark.parametrize("counts", [[0] * 100, list(range(100))])
def test_selection_of_many_clients_or_of_none(tmp_path, counts, area):
    types = ["CI"] + ["AI"] * 2 + ["SC"] * 96 + ["none"]
    plots.plot_selection(counts, types, tmp_path / "selection.png", rounds=100)
    assert (area(tmp_path / "selection.png", BAR) > 0) == any(counts)


def test_selectors_share_one_scale(tmp_path, area):
    """Half the participations, half the blue: the panels of several selectors can be compared with the eye."""
    types = ["CI", "AI", "SC", "SC"]
    twice = {"uniform": [10, 10, 10, 10], "feddiverse": [10, 10, 10, 10]}
    half = {"uniform": [10, 10, 10, 10], "feddiverse": [5, 5, 5, 5]}
    bars = []
    for counts in (twice, half):
        plots.plot_selection(counts, types, tmp_path / "selection.png", rounds=10)
        bars.append(area(tmp_path / "selection.png", BAR))
    assert bars[1] / bars[0] == pytest.approx(3 / 4, rel=0.05)


@pytest.mark.parametrize("sizes", [[1, 2, 97], [97, 2, 1], [1, 1, 1, 97], [50, 1, 1, 48], [4, 4, 16]])
def test_labels_of_narrow_types_keep_their_distance_and_stay_inside(sizes):
    ends = np.cumsum(sizes).tolist()
    runs = [("SC", end - size, end) for size, end in zip(sizes, ends, strict=True)]
    gap = 7.0
    positions = plots._label_positions(runs, gap)
    assert (np.diff(positions) >= gap - 1e-9).all() or sizes == [4, 4, 16]
    assert positions[0] >= gap / 2 - 0.5
    assert positions[-1] <= sum(sizes) - 0.5 - gap / 2
    wide = [index for index, size in enumerate(sizes) if size > 2 * gap + 4]
    assert [positions[index] for index in wide] == [pytest.approx((runs[i][1] + runs[i][2] - 1) / 2, abs=gap) for i in wide]


def test_curves_show_every_line(tmp_path, area):
    write_metrics(tmp_path / "metrics.csv", measured(20))
    plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    for colour in (plots._WORST_COLOUR, plots._AVERAGE_COLOUR, *plots._group_colours(2, 2, lines=True)):
        assert area(tmp_path / "curves.png", colour) > 20


def test_names_make_another_picture_of_the_curves_and_a_lone_attribute_value_none(tmp_path):
    def picture(**names):
        plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png", **names)
        return (tmp_path / "curves.png").read_bytes()

    write_metrics(tmp_path / "metrics.csv", measured(3))
    named = {"class_names": ("digit<5", "$b_1"), "attribute_names": ("red", "green")}
    assert picture(class_names=("y = 0", "y = 1"), attribute_names=("a = 0", "a = 1")) == picture() != picture(**named)
    write_metrics(tmp_path / "metrics.csv", measured(3, ("y0_a0", "y1_a0")))
    alone = {"class_names": ("normal", "pneumonia")}
    assert picture(**alone, attribute_names=("none",)) == picture(**alone, attribute_names=("nothing",))
    # A class that is not tested has no curve, but its name is not another's.
    write_metrics(tmp_path / "metrics.csv", measured(3, ("y0_a1", "y2_a0")))
    three = {"class_names": ("x", "y", "z"), "attribute_names": ("red", "green")}
    assert picture(**three) == picture(**(three | {"class_names": ("x", "unseen", "z")}))


def test_many_curves_have_one_entry_in_the_legend_even_if_the_first_group_is_not_tested(tmp_path, area):
    keys = [f"y{y}_a0" for y in range(20)]
    sizes = []
    for missing in ("y19_a0", "y0_a0"):
        rows = [row | {f"test/acc_group/{missing}": float("nan")} for row in measured(1, keys)]
        for row in rows:  # the lines themselves lie outside the picture
            row |= {name: 2.0 for name, value in row.items() if name.startswith("test/acc_group/") and value == value}
        write_metrics(tmp_path / "metrics.csv", rows)
        plots.plot_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
        sizes.append(area(tmp_path / "curves.png", "0.75"))
    assert sizes[0] == sizes[1] > 0


def test_rounds_are_whole_numbers_and_none_comes_after_the_last():
    for last in (*range(1, 40), 100, 200, 1000):
        ticks = plots._whole_ticks(last)
        assert ticks[0] == 0, last
        assert last / 2 < ticks[-1] <= last
        assert 2 <= len(ticks) <= 6, last
        assert len(set(np.diff(ticks))) == 1, last


def test_curves_of_one_round_of_rare_evaluation_and_without_validation(tmp_path, area):
    one = measured(1)
    rare = measured(10)
    for row in rare[:4] + rare[5:9]:
        row |= {name: float("nan") for name in row if name.startswith(("val/", "test/"))}
    many = measured(5, [f"y{y}_a{a}" for y in range(10) for a in range(2)])
    blind = [{name: value for name, value in row.items() if not name.startswith("val/")} for row in many]
    untested = [{"round": row["round"], "train/loss": row["train/loss"]} for row in measured(10)]
    for name, rows in {"one": one, "rare": rare, "blind": blind, "untested": untested}.items():
        write_metrics(tmp_path / "metrics.csv", rows)
        plots.plot_curves(tmp_path / "metrics.csv", tmp_path / f"{name}.png")
        assert (area(tmp_path / f"{name}.png", plots._WORST_COLOUR) > 0) == (name != "untested")


def test_the_best_round_is_the_summarys(tmp_path):
    draw = np.random.default_rng(0)
    for _ in range(50):
        # Few different values, so that there are ties.
        worst, average = draw.choice([0.1, 0.2, 0.3, np.nan], (2, 12))
        summary = Summary(run_dir=tmp_path, facts={}, model_config={})
        state = SimpleNamespace(model={"weight": torch.zeros(1)}, memory={})
        federation = SimpleNamespace(state=state, callbacks={})
        for number, (w, a) in enumerate(zip(worst, average, strict=True), 1):
            metrics = {"val/acc_worst_group": w, "val/acc": a, "test/acc": 0.5}
            summary.on_round_end(federation, RoundResult(number, (), (), metrics, Ledger(), {}, 1))
        expected = summary.best["round"] if summary.best else None
        assert plots._best_round(np.arange(1, 13), worst, average) == expected


def test_drawing_leaves_no_trace(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.plot_selection([1, 2], ["CI", "SC"], tmp_path / "selection.png", rounds=2)
    assert dict(matplotlib.rcParams) == before


def test_a_picture_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="not in"):
        plots.plot_selection([1, 2], ["CI", "XY"], tmp_path / "selection.png", rounds=2)
    assert not list(tmp_path.iterdir())


def test_importing_the_module_does_not_import_matplotlib():
    import subprocess
    import sys
    from pathlib import Path

    code = "import sys, fedfacet.plots.run; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    source = Path(plots.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=source, check=False).returncode == 0


def contrast(colour):
    """The contrast of a colour with white, by WCAG 2."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)


def test_every_line_can_be_seen_on_white():
    groups = [plots._group_colours(*shape, lines=True) for shape in [(2, 2), (6, 3), (12, 2), (10, 1)]]
    named = plots._group_colours(3, 2, ["red", "green"], lines=True)
    own = (plots._AVERAGE_COLOUR, plots._WORST_COLOUR, plots._OTHERS_COLOUR)
    for colour in (*COLOURS, *own, *named, *(colour for one in groups for colour in one)):
        assert contrast(colour) >= 3


def test_red_is_red():
    for lines in (False, True):
        (r, g, b), *_ = colours = plots._group_colours(2, 2, ["red", "green"], lines=lines)
        assert r > 2 * max(g, b)
        assert colours[1][1] == max(colours[1]), "and green is green"
        assert len(set(colours)) == 4
