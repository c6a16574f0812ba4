"""Simulated minutes to a target, by hand."""

import csv
import io

import pytest
from matplotlib.figure import Figure

from fedfacet.analysis.curves import curves_of, draw_curves
from fedfacet.analysis.runs import Run
from fedfacet.analysis.time_to import draw_times, time_to
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.errors import ConfigError

METRIC = "val/acc"


def run(folder, selector, seed, values, seconds=60):
    """A run whose rounds each take some seconds."""
    folder.mkdir()
    rows = [f"{round},0 1,{value},{seconds * round}" for round, value in enumerate(values, 1)]
    (folder / "metrics.csv").write_text("\n".join([f"round,cohort,{METRIC},sim/clock", *rows]) + "\n")
    summary = {"status": "finished", "rounds": len(values), "final": {"round": len(values), METRIC: values[-1]}}
    return Run(folder, seed, {"seed": seed, "choices.selector": selector, "choices.experiment": "gsc"}, summary)


@pytest.fixture
def runs(tmp_path):
    return [
        run(tmp_path / "a", "fast", 0, [0.5, "", 0.9, 0.95]),
        run(tmp_path / "b", "fast", 1, [0.9, 0.8, 0.95, 0.9], seconds=120),
        run(tmp_path / "c", "slow", 0, [0.1, 0.2, 0.9, 0.3]),
        run(tmp_path / "d", "slow", 1, [0.1, 0.2, 0.8, 0.3]),
    ]


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[:4]]


def test_the_picture_has_every_seed_and_names_what_is_missed(runs, tmp_path, monkeypatch):
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: (figures.append(figure), save(figure, *a, **b)))
    draw_times(time_to(runs, metric=METRIC, targets=[0.9, 0.95]), tmp_path / "one.png")
    (axes,) = figures.pop().axes
    assert [text.get_text() for text in axes.texts] == ["", "90 %: 1 of 2 seeds; 95 %: never"]
    left, right = axes.get_xlim()
    drawn = {tuple(line.get_xdata()) for line in axes.lines}
    assert {(3, 2), (2.5,), (4, 6), (5,), (2.5, 5), (3,)} <= drawn, "seeds, and their means"
    assert left < 2
    assert right > 6
    hollow = [tuple(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert hollow == [(3,)], "the mean of a part of the seeds"


def test_means_only_where_all_seeds_are_there(runs):
    found = time_to(runs, metric=METRIC, targets=[0.9, 0.95])
    lines = cells(to_markdown(found.table()))
    assert lines[0] == ["selector", "seeds", "minutes to 0.9", "minutes to 0.95"]
    assert lines[2] == ["fast", "2", "2.5 ± 0.5", "5 ± 1"]
    assert lines[3] == ["slow", "2", "reached by 1 of 2 (best 0.8)", "not reached (best 0.85)"]
    assert "minutes to 0.95" in to_latex(found.table())
    rows = list(csv.DictReader(io.StringIO(to_csv(found.table()))))
    assert [(row["minutes"], row["round"], row["best"]) for row in rows if row["row"] == "slow" and row["target"] == "0.9"] == [
        ("3.0", "3", "0.9"),
        ("", "", "0.8"),
    ]


def test_percent_where_a_fraction_is_meant_is_refused(runs):
    with pytest.raises(ConfigError, match=r"a fraction between 0 and 1, .* but got 90: write 0\.9"):
        time_to(runs, metric=METRIC, targets=[0.9, 90])


def test_less_may_be_better(runs):
    (found,) = (
        one for key, one in time_to(runs, metric=METRIC, targets=[0.2], lower_is_better=True).found.items() if key[0] == "slow"
    )
    assert [(one.round, one.minutes, one.best) for one in found] == [(1, 1.0, 0.1), (1, 1.0, 0.1)]


def test_runs_without_a_clock_are_left_out_or_refused(runs, tmp_path):
    without = run(tmp_path / "e", "none", 0, [0.9])
    (tmp_path / "e" / "metrics.csv").write_text(f"round,cohort,{METRIC}\n1,0,0.9\n")
    found = time_to([*runs, without], metric=METRIC, targets=[0.9])
    assert {row for row, _, _ in found.found} == {"fast", "slow"}
    assert "1 of 5 runs have no simulated clock and are left out." in found.notes
    with pytest.raises(ConfigError, match="none of 1 has one: train with `devices`"):
        time_to([without], metric=METRIC, targets=[0.9])
    with pytest.raises(ConfigError, match=r"for --against sim/clock, but .*e has none"):
        curves_of([*runs, without], metric=METRIC, against="sim/clock")


def test_curves_against_the_clock_lie_at_its_mean(runs, tmp_path):
    found = curves_of(runs, metric=METRIC, against="sim/clock")
    fast = next(curve for curve in found.curves if curve.row == "fast")
    assert fast.rounds_R.tolist() == [1, 3, 4]
    assert fast.places_R.tolist() == [1.5, 4.5, 6]
    draw_curves(found, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    plain = next(curve for curve in curves_of(runs, metric=METRIC).curves if curve.row == "fast")
    assert plain.places_R.tolist() == [1, 3, 4]
