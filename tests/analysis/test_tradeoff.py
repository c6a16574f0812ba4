"""What attacks find beside accuracies."""

import csv
import io
import math
from pathlib import Path

import pytest
from matplotlib.image import imread
from scipy import stats

from fedfacet.analysis.audits import ReadAudit
from fedfacet.analysis.runs import Run
from fedfacet.analysis.tradeoff import draw_tradeoff, tradeoff_of
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError
from fedfacet.plots import tradeoff as plots

NAMES = ("attack/mean/auc", "received_test/acc_mean", "trained_test/acc_mean", "test/acc")


def run(submodel="gfm", num_whole=2, seed=0, *, auc=0.52, moment="after_training", final=None, **settings):
    choices = {"choices.submodel": submodel, "choices.dataset": "cifar10", "choices.selector": "all", "seed": seed}
    own = choices | ({} if num_whole is None else {"capacity.num_whole": num_whole}) | {"model.width": 16} | settings
    measured = {"round": 150, "received_test/acc_mean": 0.6, "trained_test/acc_mean": 0.64, "test/acc": 0.75} | (final or {})
    threat_model = {"victim": "clients", "moment": moment, "round": 150}
    audits = [] if auc is None else [ReadAudit(Path("audit"), threat_model, [], {"attack/lira/auc": auc})]
    return Run(
        Path(f"{submodel}{num_whole}{seed}"), seed, own, {"status": "finished", "rounds": 150, "final": measured}, audits
    )


def without(metric):
    one = run()
    final = {name: value for name, value in one.summary["final"].items() if name != metric}
    return Run(one.path, 0, one.settings, {**one.summary, "final": final}, one.audits)


def some():
    runs = [run(name, large, seed, auc=0.5 + 0.01 * large + 0.001 * seed)
            for name in ("gfm", "heterofl") for large in (2, 8) for seed in range(3)]  # fmt: skip
    return [*runs, *(run("whole", None, seed, auc=0.55) for seed in range(3))]


def test_settings_are_told_with_their_intervals():
    found = tradeoff_of(some())
    assert [(one.row, one.column) for one in found.settings] == [
        *(("gfm", "2"), ("heterofl", "2"), ("gfm", "8"), ("heterofl", "8"), ("whole", "-"))
    ]
    assert (found.study.corner, found.study.heads, found.chance) == ("submodel", "capacity.num_whole", 50)
    assert found.attacked == ("trained_test/acc_mean",)
    values = [52.0, 52.1, 52.2]
    assert found.settings[0].values["attack/mean/auc"] == pytest.approx(values)
    low, high = stats.t.interval(0.95, 2, loc=52.1, scale=stats.sem(values))
    (line,) = (line for line in to_markdown(found.table()).splitlines() if line.startswith("| cifar10 | gfm") and " 2 " in line)
    assert f" 52.10 [{low:.2f}, {high:.2f}] " in line
    assert r"\begin{tabular}{lllrrrrr}" in to_latex(found.table())
    lines = list(csv.DictReader(io.StringIO(to_csv(found.table()))))
    assert len(lines) == 15
    assert float(lines[0]["attack/mean/auc"]) == pytest.approx(52.0)
    assert {float(line["test/acc"]) for line in lines} == {75.0}


def test_the_picture_has_what_the_table_has(tmp_path, monkeypatch):
    drawn = {}
    plot = plots.plot_tradeoff
    monkeypatch.setattr(
        "fedfacet.analysis.tradeoff.plot_tradeoff",
        lambda rows, titles, path, **how: (drawn.update(rows=rows, titles=titles, how=how), plot(rows, titles, path, **how)),
    )
    more = [run("gfm", 2, seed, **{"choices.dataset": "cifar100"}) for seed in range(2)]
    draw_tradeoff(tradeoff_of([*some(), *more]), tmp_path / "one.png")
    assert {dataset: len(dots) for dataset, dots in drawn["rows"].items()} == {"cifar10": 5, "cifar100": 1}
    assert drawn["titles"] == ["clients, as received", "clients, after local training (attacked)", "server"]
    assert drawn["how"]["chance"] == 50
    dot = drawn["rows"]["cifar10"][0]
    assert [y.mean for y in dot.ys] == pytest.approx([60, 64, 75])
    assert dot.x.low < dot.x.mean < dot.x.high
    height, width, _ = imread(tmp_path / "one.png").shape
    assert width > height > 500


def test_widths_are_told_apart_where_runs_differ_in_them():
    widths = [run("whole", None, seed, **{"model.width": width}) for seed in (0, 1) for width in (8, 16)]
    alone = tradeoff_of(widths)
    assert [(one.row, one.column) for one in alone.settings] == [("whole", "8"), ("whole", "16")], "figure 7b"
    beside = tradeoff_of([*widths, run()])
    assert [(one.row, one.column) for one in beside.settings] == [("gfm / 16", "2"), ("whole / 8", "-"), ("whole / 16", "-")]


def test_which_models_were_attacked_is_told_where_it_is_one_kind():
    received = [run(seed=seed, moment="received") for seed in (0, 1)]
    assert tradeoff_of(received).attacked == ("received_test/acc_mean",)
    assert len(tradeoff_of([received[0], run(seed=1)]).attacked) == 2


def test_a_setting_without_a_value_is_left_out_and_named(tmp_path):
    runs = [run("gfm", 2, 0), run("osm", 2, 0, auc=None), run("osr", 2, 0, final={"received_test/acc_mean": math.nan})]
    found = tradeoff_of(runs)
    assert any("`attack/mean/auc` was not measured in 1 of 3 runs" in note for note in found.notes)
    lines = {
        line.split("|")[2].strip(): line for line in to_markdown(found.table()).splitlines() if line.startswith("| cifar10")
    }
    assert lines["osm"].split("|")[5].strip() == "-"
    assert lines["osr"].split("|")[6].strip() == "-"
    draw_tradeoff(found, tmp_path / "one.png")


@pytest.mark.parametrize(
    ("metric", "chance"), [("attack/lira/advantage", 0), ("attack/lira/tpr_at_0.01", 1), ("attack/lira/acc_members", None)]
)
def test_chance_is_that_of_the_metric(metric, chance):
    audit = ReadAudit(Path("audit"), {"victim": "clients", "moment": "received", "round": 150}, [], {metric: 0.1})
    one = run()
    assert tradeoff_of([Run(one.path, 0, one.settings, one.summary, [audit])], metric=metric).chance == chance


@pytest.mark.parametrize(
    ("runs", "how", "sentence"),
    [
        ([run(auc=None)], {}, r"attack=\[loss_threshold,lira\]`"),
        ([run()], {"metric": "test/acc"}, "Expected a metric of attacks, such as attack/mean/auc, or a gap between groups"),
        ([without("received_test/acc_mean")], {}, "run them with .callbacks=.default,submodel_evaluate"),
        ([run(), run()], {}, "seed 0 twice"),
        ([run()], {"rows": ["submodle"]}, "submodle"),
    ],
)
def test_bad_input_costs_one_sentence(runs, how, sentence):
    with pytest.raises(ConfigError, match=sentence):
        tradeoff_of(runs, **how)


@pytest.mark.parametrize(
    "wrong",
    ["--tradeoff --at last", "--tradeoff --curves", "--tradeoff --layout table1", "--picture x.png",
     "--tradeoff --picture x.jpg", "--audit moment", "--tradeoff --threshold 3"],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["logs", *wrong.split()])
    assert "error: --" in capsys.readouterr().err


def test_gaps_between_groups_stand_beside_two_accuracies(tmp_path):
    gap = "test/fair/equal_opportunity"
    runs = [
        run(auc=None, seed=seed, final={gap: 0.1 * (place + 1) + 0.01 * seed, "test/acc_worst_group": 0.5},
            **{"choices.method": method, "choices.aggregator": "fedavg"})
        for place, method in enumerate(("known_matrices", "no_shared_stats")) for seed in range(2)
    ]  # fmt: skip
    found = tradeoff_of(runs, metric=gap)
    assert (found.study.corner, found.study.heads, found.chance) == ("method", "aggregator", None)
    assert [one.row for one in found.settings] == ["known_matrices", "no_shared_stats"]
    assert found.settings[1].values == {
        gap: pytest.approx([20, 21]), "test/acc": pytest.approx([75, 75]), "test/acc_worst_group": pytest.approx([50, 50])
    }  # fmt: skip
    draw_tradeoff(found, tmp_path / "one.png")
    assert imread(tmp_path / "one.png").std() > 0
