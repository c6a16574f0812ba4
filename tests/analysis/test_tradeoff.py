"""What attacks find beside accuracies."""

import csv
import io
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from scipy import stats

from fedfacet.analysis.audits import ReadAudit
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study
from fedfacet.analysis.tradeoff import OF_GROUPS, Setting, Tradeoff, draw_tradeoff, tradeoff_of
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError

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


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Return a function that draws settings and returns the figure."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: (figures.append(figure), save(figure, *a, **b)))

    def drawn(found):
        draw_tradeoff(found, tmp_path / "one.png")
        return figures.pop()

    return drawn


def test_the_picture_has_what_the_table_has(drawn, tmp_path):
    more = [run("gfm", 2, seed, **{"choices.dataset": "cifar100"}) for seed in range(2)]
    figure = drawn(tradeoff_of([*some(), *more]))
    whose = ["clients, as received", "clients, after local training (attacked)", "server"]
    assert [axes.get_title() for axes in figure.axes] == [f"{name}: {one}" for name in ("cifar10", "cifar100") for one in whose]
    for place, axes in enumerate(figure.axes):
        dots = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
        assert len(dots) == (5 if place < 3 else 1)
        assert [y for dot in dots for y in dot.get_ydata()] == pytest.approx([(60, 64, 75)[place % 3]] * len(dots))
        assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == "--"] == [[50, 50]]
    height, width, _ = imread(tmp_path / "one.png").shape
    assert width > height > 500


def settings(number, colour="k"):
    """Return settings of which every other one is hidden by its neighbour, with intervals as wide as all of them together."""
    places = [(0.02 * (k % 2) + k // 2, 70 + 3 * (k // 4)) for k in range(number)]
    reach = {"test/fair/equal_opportunity": number, "test/acc": 20, "test/acc_worst_group": 40}
    return [
        Setting("d", f"method_{k}", colour, (0, 1), {
            name: [middle - far / stats.t.ppf(0.975, 1), middle + far / stats.t.ppf(0.975, 1)]
            for (name, far), middle in zip(reach.items(), (x, y, y), strict=True)
        })
        for k, (x, y) in enumerate(places)
    ]  # fmt: skip


def of_groups(some_settings):
    study = Study([run(final={"test/fair/equal_opportunity": 0.1})], ["submodel"], ["dataset"], "test/fair/equal_opportunity")
    return Tradeoff(study, OF_GROUPS, (), tuple(some_settings), "", ())


def test_intervals_stay_within_the_frame(drawn):
    found = of_groups(settings(14))
    for axes, name in zip(drawn(found).axes, OF_GROUPS, strict=True):
        (left, right), (down, up) = axes.get_xlim(), axes.get_ylim()
        xs = [one.extent(found.study.metric) for one in found.settings]
        assert left < min(x.low for x in xs)
        assert right > max(x.high for x in xs)
        assert down < min(one.extent(name).low for one in found.settings)
        assert up > max(one.extent(name).high for one in found.settings)


def test_each_point_has_its_name_beside_it(drawn):
    figure = drawn(of_groups(settings(14)))
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
    figure = drawn(of_groups([*settings(3), *settings(3, "l")]))
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == []
    (legend,) = figure.legends
    assert {"method_0", "k", "l"} <= {text.get_text() for text in legend.get_texts()}


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
