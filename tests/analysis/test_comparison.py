"""Settings compared seed by seed."""

import csv
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from statsmodels.stats.multitest import multipletests

from fedfacet.analysis.comparison import compare_with, draw_comparison, plot_forest
from fedfacet.analysis.paired import PairedDifference, paired_difference
from fedfacet.analysis.runs import Run
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.errors import ConfigError, FedFacetError

METRIC = "test/acc_worst_group"
VALUES = {
    "uniform": np.random.default_rng(0).normal(0.50, 0.01, 8),
    "better": np.random.default_rng(1).normal(0.60, 0.01, 8),
    "same": np.random.default_rng(2).normal(0.50, 0.01, 8),
    "worse": np.random.default_rng(3).normal(0.30, 0.01, 8),
}


def run(selector, seed, value, experiment="gsc", best=None, path="."):
    summary = {
        "status": "finished",
        "rounds": 50,
        "git_commit": "0" * 40,
        "final": {"round": 50, METRIC: value, "test/loss": 1 - value},
    }
    summary["best"] = None if best is None else {"round": 37, METRIC: best}
    return Run(Path(path), seed, {"seed": seed, "choices.selector": selector, "choices.experiment": experiment}, summary)


@pytest.fixture
def runs():
    return [run(selector, seed, value) for selector, values in VALUES.items() for seed, value in enumerate(values)]


@pytest.mark.parametrize("test", ["permutation", "t"])
def test_each_row_against_the_baseline(runs, test):
    comparison = compare_with(runs, "uniform", test=test)
    found = {line.row: line for line in comparison.lines}
    assert list(found) == ["better", "same", "worse"]
    for row, line in found.items():
        assert line.difference == paired_difference(100 * VALUES[row], 100 * VALUES["uniform"])
        assert line.seeds == tuple(range(8))
    p_values = [line.p for line in comparison.lines]
    assert [line.p_corrected for line in comparison.lines] == pytest.approx(list(multipletests(p_values, method="holm")[1]))
    assert {row: comparison.verdict(line) for row, line in found.items()} == {
        "better": "better",
        "same": "not significant",
        "worse": "worse",
    }


def test_where_lower_is_better_the_verdict_turns(runs):
    comparison = compare_with(runs, "uniform", metric="test/loss", lower_is_better=True)
    assert {line.row: comparison.verdict(line) for line in comparison.lines}["better"] == "better"
    assert not comparison.study.percent


def test_only_seeds_of_both_are_paired(runs):
    left = [each for each in runs if (each.setting("selector"), each.seed) not in {("better", 7), ("uniform", 0)}]
    comparison = compare_with(left, "uniform")
    better = next(line for line in comparison.lines if line.row == "better")
    assert better.seeds == tuple(range(1, 7))
    assert better.difference == paired_difference(100 * VALUES["better"][1:7], 100 * VALUES["uniform"][1:7])
    assert "`better, gsc` leaves out seeds that it or `uniform` lacks: 0, 7." in comparison.notes


def test_too_few_seeds_for_the_permutation_test_are_said(runs):
    few = [each for each in runs if each.seed < 4]
    comparison = compare_with(few, "uniform")
    assert {comparison.verdict(line) for line in comparison.lines} == {"not significant"}
    assert any(
        "no p-value of the permutation test is below 0.12, and the correction is over 3 lines" in note
        and "Run 7 seeds or more" in note
        for note in comparison.notes
    )
    by_t = compare_with(few, "uniform", test="t")
    assert [by_t.verdict(line) for line in by_t.lines] == ["better", "not significant", "worse"]
    assert not any("permutation" in note for note in by_t.notes)


def test_differences_that_are_all_the_same_are_said_where_the_t_test_takes_them_for_proof(runs):
    """Accuracies are counts of images, so two seeds may well differ by as many."""
    values = {(selector, seed): 0.9 + 0.01 * seed + by for selector, by in (("uniform", 0), ("more", 0.001)) for seed in (0, 1)}
    alike = [run(selector, seed, value) for (selector, seed), value in values.items()]
    at_best_too = [run(selector, seed, value, best=value) for (selector, seed), value in values.items()]
    by_t = compare_with(alike, "uniform", test="t")
    assert [(line.p, by_t.verdict(line)) for line in by_t.lines] == [(0, "better")]
    assert compare_with(at_best_too, "uniform", test="t", at="both").notes == by_t.notes  # once, and not per moment
    assert by_t.notes == (
        "`more, gsc` differs by the same in all 2 seeds, so the t test sees no spread and its p-value is 0: take --test "
        "permutation, or run more seeds.",
    )
    assert not any("no spread" in note for note in compare_with(alike, "uniform").notes)
    equal = [run(selector, seed, 0.9) for selector in ("uniform", "more") for seed in (0, 1)]
    assert not any("no spread" in note for note in compare_with(equal, "uniform", test="t").notes)


def test_a_run_without_a_value_is_nan_and_not_counted(runs):
    lost = [each for each in runs if (each.setting("selector"), each.seed) != ("better", 3)]
    comparison = compare_with([*lost, run("better", 3, math.nan)], "uniform")
    better = next(line for line in comparison.lines if line.row == "better")
    assert math.isnan(better.p)
    assert comparison.verdict(better) == "not significant"
    assert "over 2 lines" in comparison.caption
    assert any("is nan because" in note for note in comparison.notes)


def test_written_in_every_form(runs, tmp_path):
    several = [*runs, *(run(selector, seed, 0.5 + seed / 100, "gci") for selector in ("uniform", "same") for seed in range(8))]
    comparison = compare_with(several, "uniform", command="report <x>")
    markdown = to_markdown(comparison.table()).splitlines()
    assert markdown[0].split("|")[1:3] == [" selector ", " experiment "]
    assert markdown[2].replace(" ", "").startswith("|same|gci|8|+0.00|[0.00,0.00]|[0.00,0.00]|1|1|-|notsignificant|")
    assert [line.split("|")[1].strip() for line in markdown[2:6]] == ["same", "better", "same", "worse"]
    assert markdown[3].endswith("|          better |")
    assert "**" not in "".join(markdown), "bold is the best of a column of means, nothing else"
    assert r"\begin{tabular}{llrrrrrrrr}" in to_latex(comparison.table())
    lines = list(csv.DictReader(io.StringIO(to_csv(comparison.table()))))
    assert [line["verdict"] for line in lines] == ["not significant", "better", "not significant", "worse"]
    assert float(lines[1]["t_low"]) == comparison.lines[1].difference.t_interval[0]
    draw_comparison(comparison, tmp_path / "forest.png")
    with Image.open(tmp_path / "forest.png") as picture:
        assert picture.size[0] > 800


def test_a_column_without_the_baseline_is_named(runs):
    comparison = compare_with([*runs, run("same", 0, 0.5, "gci")], "uniform")
    assert "`same, gci` is not compared: `uniform` has no finished run there." in comparison.notes


@pytest.mark.parametrize(("lower", "told"), [(False, "better: higher"), (True, "better: lower")])
def test_the_caption_says_what_is_better(runs, lower, told):
    assert f"{told}. " in compare_with(runs, "uniform", metric="test/loss", lower_is_better=lower).caption


def test_a_run_that_diverged_in_the_tail_has_no_tail(tmp_path):
    rows = [f"{round},{'nan' if round == 20 else 0.5}" for round in range(1, 21)]
    (tmp_path / "metrics.csv").write_text("\n".join([f"round,{METRIC}", *rows]) + "\n")
    assert math.isnan(run("uniform", 0, math.nan, path=tmp_path).at("tail")[METRIC])


def test_a_tail_of_one_round_is_told(tmp_path):
    runs = []
    for selector in ("uniform", "other"):
        (tmp_path / selector).mkdir()
        rows = [f"{round},{0.5 if round % 5 == 0 else 'nan'}" for round in range(1, 41)]
        (tmp_path / selector / "metrics.csv").write_text("\n".join([f"round,{METRIC}", *rows]) + "\n")
        runs.append(run(selector, 0, 0.5, path=tmp_path / selector))
    note = f"The tail is one measured round: run more rounds, or measure `{METRIC}` more often."
    assert note in compare_with(runs, "uniform", at="tail").notes
    assert note not in compare_with(runs, "uniform", at="last").notes


def test_last_best_and_tail_are_lines_of_one_family(tmp_path):
    """The tail is the mean of the last tenth of the rounds that were measured, here of 28 and 30."""
    runs = []
    for selector, shift in (("uniform", 0.0), ("other", 0.1)):
        for seed in range(2):
            folder = tmp_path / f"{selector}{seed}"
            folder.mkdir()
            rows = [f"{round},1 2,{'nan' if round % 2 else round / 100 + shift}" for round in range(1, 30)]
            last = 0.2 + shift
            (folder / "metrics.csv").write_text("\n".join([f"round,cohort,{METRIC}", *rows, f"30,1 2,{last}"]) + "\n")
            runs.append(run(selector, seed, last, best=last + 0.1, path=folder))
    comparison = compare_with(runs, "uniform", at="all")
    assert [line.at for line in comparison.lines] == ["last", "best", "tail"]
    assert "over 3 lines" in comparison.caption
    assert runs[2].at("tail")[METRIC] == pytest.approx((0.28 + 0.1 + 0.3) / 2)
    (tmp_path / "uniform0" / "metrics.csv").write_text("round\nx\n")
    damaged = run("uniform", 0, 0.1, path=tmp_path / "uniform0" / ".." / "uniform0")
    with pytest.raises(FedFacetError, match="line 2: `round` is 'x'"):
        damaged.at("tail")


def test_arguments_that_are_none_are_refused(runs):
    for argument in ("at", "test"):
        with pytest.raises(ValueError, match=f"Expected `{argument}` to be "):
            compare_with(runs, "uniform", **{argument: "sometimes"})


def test_a_baseline_that_is_no_row_is_refused(runs):
    with pytest.raises(ConfigError, match="got 'unifrm': name one of 'better', 'same', 'uniform', 'worse'"):
        compare_with(runs, "unifrm")
    with pytest.raises(ConfigError, match="a column that 'uniform' and another row share"):
        compare_with([run("uniform", 0, 0.5), run("other", 0, 0.5, "gci")], "uniform")


def line(name, mean, reach):
    intervals = (mean - reach, mean + reach), (mean - 0.8 * reach, mean + 0.8 * reach)
    difference = PairedDifference(8, mean, 1.0, *intervals, p_t=0.5, p_permutation=0.5, seeds_needed=9.0)
    return name, difference, "not significant"


USUAL = [line("a", 0.2, 1), line("b", -0.4, 1), line("c", 0.5, 1), line("d", 1, 1)]


@pytest.fixture
def texts(tmp_path):
    """Return a function that draws lines and returns what is written in the picture, its axes included."""

    def texts(lines):
        plot_forest({"panel": lines}, "uniform", "points", tmp_path / "forest.svg")
        return set(re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "forest.svg").read_text()))

    return texts


def test_a_line_far_longer_than_the_others_leaves_the_frame(texts):
    """The others keep their axis; the mean is told where it lies outside."""
    usual = texts(USUAL)
    for mean, told in ((-18.64, {"-18.6"}), (0.3, set()), (40.0, {"+40.0"})):
        assert texts([*USUAL, line("wide", mean, 28)]) == usual | {"wide"} | told


def test_lines_of_like_length_stay_inside_and_no_interval_is_no_error(texts):
    assert {"8", "more", "alone"} <= texts([*USUAL, line("more", 4, 4), line("alone", 2.0, math.nan)])
    assert "8" in texts([*USUAL, line("wide", 0.3, 28), line("alone", 9.0, math.nan)])
