import csv
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import SeedTwiceError, smaller_is_better
from fedfacet.analysis.tables import Column, make_table
from fedfacet.analysis.writers import Table, bars, to_csv, to_latex, to_markdown
from fedfacet.errors import ConfigError

METRIC = "test/acc_worst_group"
WRITERS = (to_markdown, to_latex, to_csv)


def run(selector="uniform", seed=0, last=0.5, best=None, experiment="cmnist_gsc", status="finished", path=None, **settings):
    """Return a run whose worst-group accuracy is ``last`` and ``best``; ``settings`` by dotted key, ``__`` for the dot."""
    summary = {
        "status": status,
        "rounds": 50,
        "git_commit": "0123456789abcdef",
        "hardware": {"cpu": "2 cores"},
        "final": {"round": 50, METRIC: last, "test/acc": 0.9, "test/loss": last},
        "best": None if best is None else {"round": 37, METRIC: best},
    }
    values = {"seed": seed, "choices.selector": selector, "choices.experiment": experiment, "local.lr": 0.01}
    values |= {key.replace("__", "."): value for key, value in settings.items()}
    return Run(Path(path or f"logs/{selector}-{seed}"), seed, values, summary if status else None)


def cells_of(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    grid = [[text.strip() for text in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in [grid[0], *grid[2:]]}


def test_a_column_of_single_characters_has_a_rule():
    """`:` alone is none to Markdown, and the whole table would be text."""
    rule = bars(Table("", ["s", "p"], [["a", "1"]])).splitlines()[1]
    assert rule == "| -- | -: |"


@pytest.mark.parametrize(("std", "ddof"), [("population", 0), ("sample", 1)])
@pytest.mark.parametrize("at", ["last", "best"])
def test_mean_and_deviation_are_numpys(std, ddof, at):
    values = np.random.default_rng(0).random((4, 5))
    runs = [run(f"s{i}", seed, **{"last": 0.0, at: values[i, seed]}, path=f"{i}{seed}") for i in range(4) for seed in range(5)]
    table = make_table(runs, at=at, std=std)
    for i in range(4):
        cell = table.cells[f"s{i}", Column("cmnist_gsc", at)]
        assert cell.mean == pytest.approx(100 * values[i].mean(), abs=1e-12)
        assert cell.std == pytest.approx(100 * values[i].std(ddof=ddof), abs=1e-12)
        assert cell.seeds == (0, 1, 2, 3, 4)
        assert cells_of(to_markdown(table.table()))[f"s{i}"][0].strip("*<u>/").replace("**", "").replace("</u>", "") == (
            f"{100 * values[i].mean():.2f} ± {100 * values[i].std(ddof=ddof):.2f} (5)"
        )
    assert std in table.caption


def test_last_and_best_round_stand_side_by_side():
    runs = [run("a", 0, last=0.1, best=0.2), run("a", 1, last=0.3, best=0.4)]
    assert cells_of(to_markdown(make_table(runs).table())) == {
        "selector": ["cmnist_gsc, last", "cmnist_gsc, best"],
        "a": ["20.00 ± 10.00 (2)", "30.00 ± 10.00 (2)"],
    }
    assert cells_of(to_markdown(make_table(runs, at="best").table()))["a"] == ["30.00 ± 10.00 (2)"]


@pytest.mark.parametrize(
    ("lower", "marked"), [(False, ["10.00", "<u>20.00</u>", "**30.00**"]), (True, ["**10.00**", "<u>20.00</u>", "30.00"])]
)
def test_best_is_bold_and_second_underlined(lower, marked):
    means = {"a": 0.1, "b": 0.2, "c": 0.3}
    runs = [run(row, seed, last=mean + 1e-6 * seed) for row, mean in means.items() for seed in range(8)]
    table = make_table(runs, lower_is_better=lower).table()
    assert [cells_of(to_markdown(table))[row][0] for row in "abc"] == [
        re.sub(r"(\d\d)\b(?!\.)", r"\1 ± 0.00", text) + " (8)" for text in marked
    ]
    assert table.notes[-1].startswith("Bold: the best of its column, where it is significantly better")


@pytest.mark.parametrize(
    ("seeds", "close", "bold"), [(5, 0, False), (6, 0, True), (8, 0.3, False)], ids=["few seeds", "enough", "level"]
)
def test_the_best_is_bold_only_where_no_row_is_level_with_it(seeds, close, bold):
    noise = np.random.default_rng(0).normal(size=seeds)
    runs = [run("a", seed, last=0.5 + close * noise[seed]) for seed in range(seeds)]
    runs += [run("b", seed, last=0.49) for seed in range(seeds)]
    table = make_table(runs).table()
    assert ("**" in to_markdown(table)) is bold
    assert table.notes[-1].startswith("Bold: " if bold else "Nothing is bold: ")


def test_marks_are_per_column_and_per_round():
    runs = [run(row, s, last=last, best=best) for row, last, best in (("a", 0.1, 0.9), ("b", 0.2, 0.8)) for s in range(6)]
    gci = {"experiment": "gci"}
    runs += [
        run(row, s, last=last, best=best, **gci) for row, last, best in (("a", 0.7, 0.1), ("b", 0.6, 0.2)) for s in range(6)
    ]
    shown = cells_of(to_markdown(make_table(runs).table()))
    assert [text.startswith("**") for text in shown["a"]] == [False, True, True, False]
    assert [text.startswith("**") for text in shown["b"]] == [True, False, False, True]


def test_what_is_printed_equal_is_marked_equal():
    means = {"a": 0.3, "b": 0.20001, "c": 0.20002, "d": 0.1}
    shown = cells_of(to_markdown(make_table([run(row, seed, last=m) for row, m in means.items() for seed in range(8)]).table()))
    assert [shown[row][0][:9] for row in "abcd"] == ["**30.00 ±", "<u>20.00 ", "<u>20.00 ", "10.00 ± 0"]


def test_a_lone_number_is_not_marked_and_has_no_deviation():
    table = make_table([run("a", last=0.3), run("b", last=0.3, experiment="gci")])
    assert cells_of(to_markdown(table.table()))["a"] == ["30.00 (1)", "missing"]
    assert math.isnan(table.cells["a", Column("gci", "last")].mean)


def test_unfinished_runs_are_left_out_and_named():
    runs = [
        run("a", 0),
        run("a", 1, last=0.0, status="interrupted", path="logs/stopped", federation__rounds=100),
        run("b", status=None, path="logs/killed"),
    ]
    table = make_table(runs)
    assert cells_of(to_markdown(table.table()))["a"] == ["50.00 (1)"]
    assert cells_of(to_markdown(table.table()))["b"] == ["missing"]
    [note] = [note for note in table.notes if "not finished" in note]
    assert "`logs/stopped` (interrupted at round 50 of 100)" in note
    assert "`logs/killed` (no summary.json yet)" in note
    assert "logs/killed" in to_latex(table.table())


def test_nothing_finished_is_an_error():
    with pytest.raises(ConfigError, match="at least one finished run"):
        make_table([run(status="interrupted"), run(seed=1, status=None)])


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_seed_without_value_makes_the_cell_nan_and_is_named(value):
    last = math.nan if value is None else value
    table = make_table(
        [run("a", 0, last=0.9), run("a", 1, last=last, path="logs/nan"), run("b", 0, last=0.1), run("c", last=0.2)]
    )
    shown = cells_of(to_markdown(table.table()))
    assert shown["a"] == ["nan (2)"]
    assert shown["c"] == ["20.00 (1)"]
    assert any("`a, cmnist_gsc` is nan" in note and "`logs/nan`" in note and "-0" not in note for note in table.notes)


def test_an_infinite_value_is_shown():
    table = make_table(
        [run("a", 0, last=math.inf), run("a", 1, last=1.5), run("b", last=0.25)], metric="test/loss", lower_is_better=True
    )
    assert cells_of(to_markdown(table.table())) == {"selector": ["cmnist_gsc"], "a": ["inf (2)"], "b": ["0.25 (1)"]}


def test_only_accuracies_are_percentages():
    runs = [run("a", 0, last=0.5), run("a", 1, last=0.7)]
    assert cells_of(to_markdown(make_table(runs, metric="test/acc").table()))["a"] == ["90.00 ± 0.00 (2)"]
    table = make_table(runs, metric="test/loss")
    assert cells_of(to_markdown(table.table()))["a"] == ["0.6 ± 0.1 (2)"]
    assert "percent" not in table.caption


def test_a_seed_twice_in_a_cell_names_both_folders():
    with pytest.raises(ConfigError, match=r"seed 1 twice, in logs/x and logs/y, with the same config"):
        make_table([run(seed=0), run(seed=1, path="logs/x"), run(seed=1, path="logs/y")])


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([{}, {"local__lr": 0.1}, {"choices__correction": "proximal"}], "correction,local.lr"),
        ([{}, {"choices__setting": "local", "local__lr": 0.1, "federation__pooled": True}], "setting"),
        ([{}, {"choices__setting": "local"}, {"choices__setting": "local", "local__lr": 0.1}], "setting,local.lr"),
        ([{}, {"callbacks__evaluate__every": 2, "local__lr": 0.1}], "local.lr"),
        ([{}, {"callbacks__evaluate__every": 2}], "callbacks.evaluate.every"),
        ([{}, {f"a{i}": i for i in range(9)}], "a0"),
    ],
)
def test_the_rows_that_are_proposed_work(settings, keys):
    runs = [run(seed=0, path=f"logs/{i}", **one) for i, one in enumerate(settings)]
    with pytest.raises(
        SeedTwiceError, match=f"give --rows selector,{keys}, choose with --where [a-z0-9.]+=[a-z0-9]+"
    ) as raised:
        make_table(runs)
    assert raised.value.rows == ("selector", *keys.split(","))
    assert len(make_table(runs, rows=raised.value.rows).rows) == len(runs)


def test_metrics_that_take_an_option_say_which():
    with pytest.raises(ConfigError, match=r"run them with `callbacks=\[default,personal_evaluate\]`\."):
        make_table([run()], metric="personal_test/acc_mean")


def test_a_seed_twice_under_other_settings_names_the_key_to_add():
    runs = [run(seed=1, path="logs/x"), run(seed=1, path="logs/y", local__lr=0.1)]
    with pytest.raises(ConfigError, match=r"logs/x and logs/y, which differ in `local\.lr`"):
        make_table(runs)
    assert make_table(runs, rows=["selector", "local.lr"]).rows == ("uniform / 0.01", "uniform / 0.1")


def test_an_unfinished_duplicate_does_no_harm():
    assert make_table([run(seed=1, path="x"), run(seed=1, path="y", status="interrupted")]).rows == ("uniform",)


def test_mixed_settings_within_a_cell_are_noted():
    table = make_table([run(seed=0), run(seed=1, local__lr=0.1, engine__workers=2)], at="last")
    assert table.notes == ("`uniform, cmnist_gsc` averages runs that differ in `local.lr`, not in the seed alone.",)


def test_what_is_the_seed_itself_is_no_mixed_setting():
    each = [run(seed=seed, partition__seed=seed) for seed in range(2)]
    for one in each:
        one.summary["partition_digest"] = str(one.seed)
    assert make_table(each, at="last").notes == ()


def differing(**settings):
    """Return the notes on two rows of which the second has other settings."""
    pairs = [[run("a", seed, path=f"a{seed}"), run("b", seed, path=f"b{seed}", **settings)] for seed in range(2)]
    return make_table([one for pair in pairs for one in pair], at="last").notes


@pytest.mark.parametrize(
    "settings", [{"partition__alpha": 0.5}, {"local__lr": 0.1}, {"choices.dataset": "cifar10"}, {"federation__rounds": 9}]
)
def test_rows_that_differ_in_more_than_they_say_are_noted(settings):
    key = next(iter(settings)).replace("__", ".").removeprefix("choices.")
    assert differing(**settings) == (f"Rows of `cmnist_gsc` differ in `{key}` too.",)


def test_what_a_method_chooses_or_a_row_tells_is_not_noted():
    assert differing(aggregator__server_lr=1.0, heterogeneity__q=2, engine__workers=3) == ()
    told = [run("a", local__lr=lr, path=str(lr)) for lr in (0.1, 0.2)]
    assert make_table(told, rows=["local.lr"], at="last").notes == ()
    assert (
        make_table([run(), run(experiment="other", local__lr=1.0)], rows=["experiment"], columns=["seed"], at="last").notes
        == ()
    )


@pytest.mark.parametrize("what", ["data", "partition"])
def test_rows_of_other_data_under_one_seed_are_not_paired(what):
    runs = [run("a", 3), run("b", 3)]
    for number, one in enumerate(runs):
        one.summary[f"{what}_digest"] = str(number)
    assert make_table(runs, at="last").notes == (
        f"Rows of `cmnist_gsc` are not paired: with the seeds 3 they differ in their {what}.",
    )


def test_unequal_seeds_are_noted():
    table = make_table([run("a", 0), run("a", 1), run("b", 1), run("c", 0), run("c", 1)], at="last")
    assert table.notes == ("`b, cmnist_gsc` lacks seeds that other cells have: 0.",)


def test_a_column_per_seed_lacks_none():
    assert make_table([run("a", 0), run("a", 1), run("b", 1)], columns=["seed"], at="last").notes == ()


def test_without_validation_only_the_last_round_is_shown():
    table = make_table([run("a"), run("b")])
    assert [column.at for column in table.columns] == ["last"]
    assert table.notes == ("No run has a best round by validation, so it is not shown.",)
    with pytest.raises(ConfigError, match="--at last"):
        make_table([run("a")], at="best")


def test_validation_in_some_runs_only_is_noted():
    table = make_table([run("a", best=0.6), run("b", path="logs/none")])
    assert cells_of(to_markdown(table.table()))["b"] == ["50.00 (1)", "nan (1)"]
    assert any("best round of `logs/none`" in note for note in table.notes)


def test_several_keys_make_one_head_and_absent_ones_a_dash():
    runs = [run("a", aggregator__server_lr=0.1), run("b")]
    table = make_table(runs, rows=["selector", "aggregator.server_lr"], columns=["local.lr"])
    assert (table.corner, table.rows) == ("selector / aggregator.server_lr", ("a / 0.1", "b / -"))
    assert table.columns == (Column("0.01", "last"),)


def test_numbers_are_ordered_as_numbers():
    runs = [run(local__lr=lr, path=str(lr)) for lr in (10, 0.003, 9, 1e-5)]
    assert make_table(runs, rows=["local.lr"]).rows == ("1e-05", "0.003", "9", "10")
    runs = [run(local__lr=lr, path=str(lr)) for lr in (10, 9)]
    assert make_table(runs, rows=["selector", "local.lr"]).rows == ("uniform / 9", "uniform / 10")


@pytest.mark.parametrize("write", WRITERS)
def test_the_order_of_the_runs_is_irrelevant(write):
    places = [(selector, seed, name) for selector in ("a", "bb") for seed in (0, 1, 2) for name in ("x", "y")]
    runs = [run(selector, seed, last=seed / 7, best=0.1, experiment=name) for selector, seed, name in places]
    assert write(make_table(runs).table()) == write(make_table(runs[::-1]).table())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "test/worst_group_acc"}, "`test/acc_worst_group`"),
        ({"rows": ["selektor"]}, "`selector`"),
        ({"columns": ["local.learning_rate"]}, "`local.lr`"),
        ({"rows": ["local"]}, "is a group of them: use `local.lr`"),
        ({"rows": [""]}, "'' is none"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_table([run()], **options)


@pytest.mark.parametrize("options", [{"at": "first"}, {"std": "none"}])
def test_impossible_options(options):
    with pytest.raises(ValueError, match="Expected `"):
        make_table([run()], **options)


def test_the_caption_says_where_the_numbers_come_from():
    runs = [run("a", seed, best=0.5) for seed in (4, 0)]
    caption = make_table(runs, command="python src/report.py logs").caption
    for part in (
        f"`{METRIC}` in percent",
        "last round (50)",
        "best: after the round whose worst group is best",
        "population",
    ):
        assert part in caption
    for part in ("Seeds: 0, 4.", "Commit: 0123456789ab.", "Hardware: cpu 2 cores.", "`python src/report.py logs`"):
        assert part in caption


def test_a_changed_working_tree_and_an_unknown_commit_are_said():
    runs = [run("a", 0), run("a", 1), run("a", 2)]
    runs[0].summary["git_commit"] = "0123456789abcdef-dirty"
    runs[1].summary["git_commit"] = None
    assert "Commit: 0123456789ab, 0123456789ab-dirty, unknown." in make_table(runs).caption


def hostile():
    """A table with every character that Markdown or LaTeX could trip over, all kinds of cells and several notes."""
    runs = [run("a_b|c&d", seed, last=0.1 * seed, best=0.3, experiment="50% #1 {x}~^$\\") for seed in (0, 1)]
    runs += [run("b", 0, best=0.9), run("c", 0, experiment="y", status=None, path="logs/a_b&c"), run("d", 0, last=math.nan)]
    return make_table(runs, command="python src/report.py 'a_b/*' --at both")


def test_markdown_is_rectangular():
    lines = [line for line in to_markdown(hostile().table()).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    assert len({len(line) for line in lines}) == 1
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {1 + 1 + 6}
    assert re.fullmatch(r"\| -+ \|( -+: \|){6}", lines[1])


def test_latex_is_balanced_and_rectangular():
    comments, text = re.match(r"((?:%[^\n]*\n)*)(.*)", to_latex(hostile().table()), re.DOTALL).groups()
    needs, provenance, made = comments.splitlines()
    assert (needs, made) == (r"% Needs \usepackage{booktabs}.", "% Made with `python src/report.py 'a_b/*' --at both`.")
    assert provenance.endswith("Commit: 0123456789ab. Hardware: cpu 2 cores.")
    bare = re.sub(r"\\[\\{}&%$#_]", "", text.replace(r"\\" + "\n", "@end\n"))
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1] == ["table", "tabular"]
    rows = [line for line in bare.splitlines() if line.endswith("@end")]
    assert len(rows) == 1 + 4
    assert {line.count("&") for line in rows} == {6}
    assert r"\begin{tabular}{lrrrrrr}" in text
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[%#±`|<>]", bare)
    assert not re.search(r"[~^_]", bare)
    assert [rule for rule in ("toprule", "midrule", "bottomrule") if text.count(rf"\{rule}") == 1] == [
        "toprule",
        "midrule",
        "bottomrule",
    ]


def test_latex_can_be_referred_to_and_tells_no_paths_in_its_caption():
    told = "python src/report.py '/home/me/a\nb' --metric test/acc_worst_group"
    runs = [run("a", seed, last=0.1) for seed in (0, 1)]
    text = to_latex(make_table(runs, command=told).table())
    assert r"  \label{tab:test-acc-worst-group-by-selector}" in text.splitlines()
    (caption,) = [line for line in text.splitlines() if r"\caption" in line]
    assert caption == (
        r"  \caption{Worst-group accuracy (\%), after the last round (50); mean $\pm$ population standard deviation over seeds"
        ", whose number is in parentheses.}"
    )
    assert "% Made with `python src/report.py '/home/me/a b' --metric test/acc_worst_group`." in text.splitlines()
    assert "Made with" not in to_latex(make_table(runs).table())


def test_latex_cells():
    table = make_table(
        [run(name, s, last=last[s % 2]) for name, last in (("fed_a", (0.1, 0.3)), ("b", (0.5, 0.5))) for s in range(6)]
    )
    lines = to_latex(table.table()).splitlines()
    assert r"    selector & cmnist\_gsc \\" in lines
    assert r"    fed\_a & \underline{20.00 $\pm$ 10.00} (6) \\" in lines
    assert r"    b & \textbf{50.00 $\pm$ 0.00} (6) \\" in lines


@pytest.mark.parametrize("name", ["[1, 2]", "*"])
def test_a_row_of_latex_begins_with_nothing_that_the_line_break_before_it_would_read(name):
    """A line break and a rule take a bracket after them for a length, and a line break takes a star."""
    lines = to_latex(make_table([run("a"), run(name)]).table()).splitlines()
    assert any(line.startswith(f"    {{}}{name} & ") for line in lines)


def test_csv_is_plain_and_unrounded():
    runs = [run("a,b", 0, last=1 / 3, best=0.5), run("a,b", 2, last=2 / 3, best=0.5), run("c", 0, last=0.1, experiment="y")]
    lines = list(csv.DictReader(io.StringIO(to_csv(make_table(runs).table()))))
    assert list(lines[0]) == ["row", "column", "mean", "std", "n", "seeds", "at"]
    assert len(lines) == 2 * 2 * 2
    first = lines[0]
    assert (first["row"], first["column"], first["at"], first["n"], first["seeds"]) == ("a,b", "cmnist_gsc", "last", "2", "0 2")
    assert float(first["mean"]) == pytest.approx(50, abs=1e-12)
    assert float(first["std"]) == pytest.approx(100 * np.std([1 / 3, 2 / 3]), abs=1e-12)
    [missing] = [line for line in lines if (line["row"], line["column"], line["at"]) == ("c", "cmnist_gsc", "last")]
    assert (missing["mean"], missing["std"], missing["n"], missing["seeds"]) == ("", "", "0", "")


def test_what_a_run_calls_itself_is_neither_markup_nor_a_formula():
    names = ("<img src=x>", "=cmd|'/c calc'!A1", "@sum", "-uniform", "-3")
    table = make_table([run(name) for name in names])
    shown = to_markdown(table.table())
    assert "<img" not in shown
    assert "&lt;img" in shown
    rows = [row[0] for row in csv.reader(io.StringIO(to_csv(table.table())))][1:]
    assert sorted(rows) == sorted(["<img src=x>", "'=cmd|'/c calc'!A1", "'@sum", "'-uniform", "-3"])


@pytest.mark.parametrize(
    ("metric", "smaller"),
    [
        ("test/loss", True), ("test/fair/equal_opportunity", True), ("val/fair/demographic_parity", True),
        ("client_fairness/acc_std", True), ("personal_test/acc_std", True),
        ("privacy/epsilon", True), ("test/ece", True), ("val/ece_worst_attribute", True), ("test/ece_attribute/a1", True),
        ("test/mse_worst_group", True), ("attack/loss_threshold/acc_members", False),
        ("test/acc", False), ("test/fair/demographic_parity_ratio", False), ("test/fair/rate/acc_a0", False),
        ("attack/loss_threshold/auc", True), ("attack/lira/acc_members", False), ("membership/auc_last", True),
        ("heterogeneity_error/distance_mean", True), ("sim/clock", True),
        ("client_fairness/acc/gap", True), ("personal/num_diverged", True), ("selector/spent", True),
        ("test/fair/signed/equal_opportunity", False), ("client_fairness/jain", False), ("auc/test/auc_macro", False),
    ],
)  # fmt: skip
def test_losses_gaps_and_spreads_are_good_when_they_are_small(metric, smaller):
    assert smaller_is_better(metric) is smaller
