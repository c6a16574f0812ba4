"""Runs by round: mean and band over seeds, where they ended, how high they got, and how soon."""

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfacet.analysis.curves import curves_of, draw_curves
from fedfacet.analysis.runs import Run
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.plots.curves import looks_of
from fedfacet.plots.style import WIDTHS

METRIC = "test/acc"


@pytest.fixture
def runs(tmp_path):
    """Return two seeds of each of two selectors, measured in every second round."""
    values = {"slow": [[0.1, 0.2, 0.3], [0.1, 0.5, 0.4]], "fast": [[0.6, 0.9, 0.7], [0.2, 0.6, 0.8]]}
    return [
        run(tmp_path / f"{selector}{seed}", selector, seed, dict(zip((2, 4, 6), of_seed, strict=True)))
        for selector, of_seeds in values.items()
        for seed, of_seed in enumerate(of_seeds)
    ]


def run(folder: Path, selector: str, seed: int, by_round: dict[int, float]) -> Run:
    folder.mkdir()
    rows = [f"{round},0 1,{by_round.get(round, '')}" for round in range(1, 7)]
    (folder / "metrics.csv").write_text("\n".join([f"round,cohort,{METRIC}", *rows]) + "\n")
    summary = {"status": "finished", "rounds": 6, "final": {"round": 6, METRIC: by_round.get(6)}}
    return Run(folder, seed, {"seed": seed, "choices.selector": selector, "choices.experiment": "gsc"}, summary)


def test_final_peak_and_rounds_to_a_threshold(runs):
    found = curves_of(runs, metric=METRIC, threshold=60)
    fast, slow = found.curves
    assert (fast.row, fast.seeds, list(fast.rounds_R)) == ("fast", (0, 1), [2, 4, 6])
    np.testing.assert_allclose(slow.values_SR, [[10, 20, 30], [10, 50, 40]])
    assert slow.final_S == pytest.approx([30, 40])
    assert slow.peak_S(lower_is_better=False) == [(pytest.approx(30), 6), (pytest.approx(50), 4)]
    assert slow.peak_S(lower_is_better=True) == [(pytest.approx(10), 2), (pytest.approx(10), 2)]
    assert fast.rounds_to_S(60, lower_is_better=False) == [2, 4]
    assert slow.rounds_to_S(40, lower_is_better=False) == [float("inf"), 4]
    assert slow.rounds_to_S(20, lower_is_better=True) == [2, 2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in to_markdown(found.table()).splitlines()[:4]]
    assert lines[0] == ["selector", "seeds", "final", "peak", "peak at round", "rounds to 60"]
    assert lines[2] == ["fast", "2", "75.00 ± 5.00", "85.00 ± 5.00", "5", "3 (2 of 2)"]
    assert lines[3] == ["slow", "2", "35.00 ± 5.00", "40.00 ± 10.00", "5", "- (0 of 2)"]
    assert "found on test data" in found.caption


def test_a_threshold_that_may_be_a_fraction_is_told(runs):
    told = "The threshold is 0.6 %, because `test/acc` is in percent here: write 60 for 60 %."
    assert told in curves_of(runs, metric=METRIC, threshold=0.6).notes
    assert not any("threshold" in note for note in curves_of(runs, metric=METRIC, threshold=60).notes)


def test_seeds_are_averaged_over_the_rounds_that_all_have(runs, tmp_path):
    found = curves_of([*runs, run(tmp_path / "third", "slow", 2, {3: 0.1, 4: 0.2, 6: 0.9})], metric=METRIC)
    assert [list(curve.rounds_R) for curve in found.curves] == [[2, 4, 6], [4, 6]]
    assert any("shows 2 of its rounds" in note for note in found.notes)
    nothing = run(tmp_path / "fourth", "slow", 3, {1: 0.5})
    found = curves_of([*runs, nothing], metric=METRIC)
    assert [curve.row for curve in found.curves] == ["fast"]
    assert "`slow, gsc` is not shown, because its seeds share no round with a value." in found.notes
    with pytest.raises(ConfigError, match="in no setting they do"):
        curves_of([nothing, *runs[:2]], metric=METRIC)


def test_a_seed_that_ends_without_a_value_is_said_and_what_is_infinite_has_no_spread(runs, tmp_path):
    loss = [
        run(tmp_path / f"loss{seed}", "slow", seed, by) for seed, by in enumerate(({2: 1, 4: 2, 6: math.inf}, {2: 1, 4: 4}))
    ]
    found = curves_of(loss[:1], metric=METRIC, lower_is_better=True)
    assert " inf |" in to_markdown(found.table())
    found = curves_of(loss, metric=METRIC)
    assert found.curves[0].final_S == [200, 400]
    assert any("shows 2 of its rounds" in note for note in found.notes)
    (lost,) = [note for note in found.notes if "has no value" in note]
    assert lost == f"`slow, gsc` ends early, because `test/acc` has no value at the last round of `{tmp_path / 'loss1'}`."


def test_a_threshold_is_reached_where_it_is_met(runs, tmp_path):
    """Twenty-nine hundredths times a hundred is a little less than 29, and seven hundredths a little more than 7."""
    (curve,) = curves_of([run(tmp_path / "exact", "slow", 0, {2: 0.29, 4: 0.07})], metric=METRIC).curves
    assert curve.rounds_to_S(29, lower_is_better=False) == [2]
    assert curve.rounds_to_S(7, lower_is_better=True) == [4]
    with pytest.raises(ValueError, match="std"):
        curves_of(runs, metric=METRIC, std="both")


def test_one_seed_has_no_spread_and_columns_have_panels(runs, tmp_path):
    runs = [replace(run, settings={**run.settings, "choices.experiment": run.settings["choices.selector"]}) for run in runs[:3]]
    found = curves_of(runs, metric=METRIC, std="sample")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in to_markdown(found.table()).splitlines()[:4]]
    assert lines[0][:3] == ["selector", "experiment", "seeds"]
    assert lines[2][1:4] == ["fast", "1", "70.00"]
    assert lines[3][1:4] == ["slow", "2", "35.00 ± 7.07"]
    draw_curves(found, tmp_path / "curves.png")


def test_lines_are_told_apart_without_colours():
    looks = looks_of([str(place) for place in range(16)])
    assert len({(look["linestyle"], look["marker"]) for look in looks.values()}) == 16


@pytest.mark.parametrize("width", WIDTHS.values())
def test_a_picture_fits_the_width_of_a_column_with_whole_names_in_letters_of_8_points(width, runs, tmp_path):
    draw_curves(curves_of(runs, metric=METRIC), tmp_path / "curves.svg", width)
    text = (tmp_path / "curves.svg").read_text()
    assert f'width="{72 * width:g}pt"' in text
    assert set(re.findall(r"font-size: ([\d.]+px)", text)) == {"8px"}
    draw_curves(curves_of(runs, metric=METRIC), tmp_path / "curves.png", width)
    with Image.open(tmp_path / "curves.png") as picture:
        ink = np.asarray(picture.convert("L")) < 250
    assert picture.size[0] == pytest.approx(200 * width, abs=1)
    assert not ink[:, [0, -1]].any(), "nothing is cut"


def test_written_and_drawn(runs, tmp_path):
    found = curves_of(runs, metric=METRIC, std="sample", threshold=50)
    assert r"75.00 $\pm$ 7.07" in to_latex(found.table())
    lines = list(csv.DictReader(io.StringIO(to_csv(found.table()))))
    assert len(lines) == 12
    assert {(line["row"], line["seed"], line["round"]): float(line[METRIC]) for line in lines}["fast", "1", "4"] == 60
    draw_curves(found, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 800
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 20  # two inks, their bands, the threshold


def test_a_damaged_table_is_named(runs):
    (runs[0].path / "metrics.csv").write_text(f"round,{METRIC}\nx,1\n")
    with pytest.raises(FedFacetError, match=r"metrics\.csv to be as it was written, but line 2: `round` is 'x'"):
        curves_of(runs, metric=METRIC)


def test_a_table_that_has_grown_is_read_anew(runs):
    before = runs[0].curve(METRIC)
    with (runs[0].path / "metrics.csv").open("a") as file:
        file.write("8,0 1,0.75\n")
    assert runs[0].curve(METRIC) == {**before, 8: 0.75}


def test_megabytes_are_what_all_rounds_so_far_have_sent(tmp_path):
    """Four bytes a float, questions included; rounds without a test count too."""
    one = run(tmp_path / "one", "slow", 0, {2: 0.1, 4: 0.2})
    with pytest.raises(ConfigError, match="counts of floats"):
        curves_of([one], metric=METRIC, against="bytes")
    names = ("comm/floats_down", "comm/floats_up", "comm/query_floats_up")
    rows = [f"{round},0 1,{0.1 if round in (2, 4) else ''},1000000,500000,{250000 * round}" for round in range(1, 5)]
    (one.path / "metrics.csv").write_text("\n".join([f"round,cohort,{METRIC},{','.join(names)}", *rows]) + "\n")
    (curve,) = curves_of([one], metric=METRIC, against="bytes").curves
    assert list(curve.places_R) == pytest.approx([4 * (2 * 1.5 + 0.25 * 3), 4 * (4 * 1.5 + 0.25 * 10)])
