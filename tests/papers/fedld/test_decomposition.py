"""Loss decompositions of real runs, told and drawn."""

import json
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from fedfacet.analysis.runs import Run, find_runs
from fedfacet.build import build, settle
from fedfacet.commands import describe
from fedfacet.config import compose_job, plain
from fedfacet.metrics.loss_decomposition import LossDecomposition
from fedfacet.papers.fedld.decomposition import describe_decompositions, plot_decompositions, remarks_on, tables_of
from fedfacet.runs.rerun import DecomposedRound, decompose_round

TERMS = ("local_loss", "distribution_shift_loss", "aggregation_loss")


def train(path, *overrides):
    """Leave a short run in a folder."""
    config, _ = compose_job(
        "train",
        [
            *("experiment=digits_gsc", "partition=dirichlet", "partition.num_clients=4", "selector=all", "logger=[]"),
            *("model.width=2", "model.hidden=4", "threads=1", "federation.cohort_size=4", "federation.rounds=2"),
            *("callbacks=save_checkpoint", "callbacks.save_checkpoint.keep=all", f"paths.output_dir={path}", *overrides),
        ],
    )
    settle(config)
    path.mkdir()
    build(config, path).fit()
    (path / "config.yaml").write_text(OmegaConf.to_yaml(plain(config)))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder of four short runs: two alphas, two aggregators."""
    folder = tmp_path_factory.mktemp("study")
    for alpha in (100, 0.1):
        for aggregator in ("fedavg", "fedld"):
            train(folder / f"{aggregator}_{alpha}", f"partition.alpha={alpha}", f"aggregator={aggregator}")
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        status = describe.main(arguments)
        return status, *capsys.readouterr()

    return run


def rows_of(out):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]


def test_one_run_is_told_with_its_participants(run, study, tmp_path):
    folder = study / "fedavg_0.1"
    status, out, err = run(f"decomposition={folder}", "round=1", "paths.output_dir=out")
    assert (status, err) == (0, "")
    parts = decompose_round(folder, 1).decomposition
    head, *participants = rows_of(out)
    assert head[1:3] == ["0", "1"]  # seed and round
    assert head[3:] == [*(f"{parts.terms()[term]:+.4f}" for term in TERMS), f"{parts.global_loss:.4f}"]
    assert [row[0] for row in participants] == ["0", "1", "2", "3"]
    assert [row[2] for row in participants] == [f"{loss:.4f}" for loss in np.diag(parts.losses)]
    assert [row[3] for row in participants] == [f"{loss:.4f}" for loss in parts.losses @ parts.shares]
    assert [row[4] for row in participants] == [f"{loss:.4f}" for loss in parts.global_losses]
    assert "wrote out/decomposition.png" in out
    with Image.open(tmp_path / "out" / "decomposition.png") as picture:
        assert picture.size[0] > 1000


@pytest.mark.slow
def test_a_study_is_one_table_by_what_differs(run, study):
    status, out, err = run(f"decomposition={study}", "round=1", "output=json", "paths.output_dir=out")
    described = json.loads(out)
    assert status == 0
    assert err == "wrote out/decomposition.png\n"
    assert {(one["settings"]["aggregator"], one["settings"]["partition.alpha"]) for one in described} == {
        (aggregator, alpha) for aggregator in ("fedavg", "fedld") for alpha in ("100", "0.1")
    }
    for one in described:
        assert sum(one[term] for term in TERMS) == pytest.approx(one["global_loss"], rel=1e-10)
        assert (one["round"], one["num_rounds"], one["same_model"]) == (1, 2, True)
        whole = sum(client["num_samples"] * client["global_model_loss"] for client in one["clients"])
        assert whole / sum(client["num_samples"] for client in one["clients"]) == pytest.approx(one["global_loss"], rel=1e-10)
    by_settings = {tuple(one["settings"].values()): one for one in described}
    for alpha in ("100", "0.1"):  # the same local models, aggregated in two ways
        pair = [
            next(one for key, one in by_settings.items() if {aggregator, alpha} <= set(key))
            for aggregator in ("fedavg", "fedld")
        ]
        for term in TERMS[:2]:
            assert pair[0][term] == pair[1][term]
        assert pair[0]["aggregation_loss"] != pair[1]["aggregation_loss"]
    status, out, _ = run(f"decomposition={study}", "round=1", "paths.output_dir=out")
    rows = rows_of(out)
    assert len(rows) == 4
    assert {cell[0] for row in rows for cell in row[-4:-1]} <= {"+", "-"}  # signed


def test_a_head_that_never_trained_is_told_of(run, tmp_path):
    train(tmp_path / "personal", "partition.alpha=0.1", "aggregator=fedavg", "personal=head")
    status, out, err = run("decomposition=personal")
    assert (status, err) == (0, "")
    assert "clients keep layers to themselves (personal=head)" in " ".join(out.split())


def test_by_default_the_last_round_and_the_picture_beside_the_run(run, study):
    status, out, _ = run(f"decomposition={study / 'fedld_100'}")
    assert status == 0
    assert rows_of(out)[0][2] == "2"
    assert (study / "fedld_100" / "decomposition.png").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("decomposition=nowhere",), "nowhere"),
        (("decomposition={study}", "partition=gsc"), "at most round=NUMBER"),
        (("decomposition={study}", "round=first"), "at most round=NUMBER"),
        (("decomposition={study}", "output=yaml"), "at most round=NUMBER"),
        (("decomposition={study}", "decomposition={study}"), "at most round=NUMBER"),
        (("decomposition={study}", "round=9"), "can do again, rounds 1, 2, 3, but got 9"),
        (("decomposition={study}", "round=0"), "can do again, rounds 1, 2, 3, but got 0"),
    ],
)
def test_bad_input_costs_one_sentence(run, study, tmp_path, arguments, part):
    status, out, err = run(*(argument.format(study=study) for argument in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("error: Expected")
    assert part in err
    assert not list(tmp_path.iterdir())


# --- drawn -----------------------------------------------------------------------------------------------------------------


def drawn(described, tmp_path, monkeypatch):
    """Return what each panel of the picture holds: titles, lines and bars."""
    from fedfacet.papers.fedld import decomposition

    seen = []
    lend = decomposition.saved_figure

    class Lent:
        def __init__(self, *arguments):
            self.lent = lend(*arguments)

        def __enter__(self):
            self.figure = self.lent.__enter__()
            return self.figure

        def __exit__(self, *exception):
            seen.extend(self.figure.axes)
            return self.lent.__exit__(*exception)

    monkeypatch.setattr(decomposition, "saved_figure", Lent)
    plot_decompositions(described, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    return seen


def one(settings, seed=0, **terms):
    usual = {"local_loss": 0.5, "distribution_shift_loss": 0.25, "aggregation_loss": -0.75, "global_loss": 0.0}
    of_run = {"run": "run", "seed": seed, "settings": settings, "round": 1, "num_rounds": 1, "same_model": None}
    return of_run | {"clients": []} | usual | terms


def test_absolute_values_are_drawn_over_alpha_a_line_per_method(tmp_path, monkeypatch):
    described = [
        one({"partition.alpha": alpha, "loss": loss}, seed, aggregation_loss=-float(alpha) - seed)
        for alpha in ("0.1", "100", "10")
        for loss in ("margin", "cross_entropy")
        for seed in (0, 2)
    ]
    local, shift, aggregation = drawn(described, tmp_path, monkeypatch)
    assert [axes.get_title() for axes in (local, shift, aggregation)] == [
        "local loss", "distribution shift loss", "aggregation loss"
    ]  # fmt: skip
    assert [label.get_text() for label in aggregation.get_xticklabels()] == ["100", "10", "0.1"]
    assert [line.get_label() for line in aggregation.lines] == ["margin", "cross_entropy"]
    assert aggregation.lines[0].get_ydata().tolist() == pytest.approx([101, 11, 1.1])  # means over the seeds
    assert shift.lines[0].get_ydata().tolist() == [0.25] * 3


def test_negative_terms_are_marked_and_the_legend_says_so(tmp_path, monkeypatch):
    described = [one({"partition.alpha": alpha}, aggregation_loss=-1 if alpha == "10" else 1) for alpha in ("0.1", "10")]
    local, _, aggregation = drawn(described, tmp_path, monkeypatch)
    (marks,) = aggregation.collections[1:]  # after the band
    assert marks.get_offsets().tolist() == [[0, 1]]  # alpha = 10
    assert not local.collections[1:]
    (legend,) = local.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["negative: lowers the loss"]


def test_a_single_run_is_named_and_its_negative_bars_are_hatched(tmp_path, monkeypatch):
    panels = drawn([one({})], tmp_path, monkeypatch)
    assert [panel.patches[0].get_hatch() for panel in panels] == [None, None, "////"]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["run"]
    (legend,) = panels[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["negative: lowers the loss"]
    assert not drawn([one({}, aggregation_loss=1)], tmp_path, monkeypatch)[-1].figure.legends


def test_lines_have_the_band_of_their_seeds(tmp_path, monkeypatch):
    described = [
        one({"partition.alpha": alpha}, seed, local_loss=0.5 + seed / 10) for alpha in ("0.1", "100") for seed in (0, 1, 2)
    ]
    local, *_ = drawn(described, tmp_path, monkeypatch)
    heights = local.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.5, 0.7)
    assert local.lines[0].get_ydata().tolist() == pytest.approx([0.6, 0.6])
    assert local.get_ylabel() == "absolute value after round 1"


METHODS = {"fedavg": ("fedavg", "cross_entropy"), "fedld_margin": ("fedavg", "margin"), "fedld": ("fedld", "margin")}


@pytest.mark.parametrize("bundled", [True, False])
def test_what_a_method_stands_for_goes_by_its_name(bundled):
    """Else by its parts, as where a part was exchanged on the command line."""
    parts = LossDecomposition(np.array([1]), np.array([[0.5]]), np.array([0.5]))
    runs = [
        Run(
            Path(f"{method}{alpha}"),
            0,
            {"choices.method": method, "choices.aggregator": aggregator, "choices.loss": loss, "partition.alpha": alpha},
            None,
        )
        for method, (aggregator, loss) in METHODS.items()
        for alpha in (100.0, 0.1)
    ]
    if not bundled:
        runs.append(Run(Path("other"), 0, runs[0].settings | {"choices.aggregator": "fedgh"}, None))
    described = describe_decompositions(runs, [DecomposedRound(1, 1, (0,), parts, None)] * len(runs))
    keys = ["method", "partition.alpha"] if bundled else ["aggregator", "loss", "partition.alpha"]
    assert [list(one["settings"]) for one in described] == [keys] * len(runs)
    settings = [list(one["settings"].values()) for one in described]
    assert settings == sorted(settings, key=lambda values: (values[:-1], -float(values[-1]))), (
        "methods by name, from alpha = 100"
    )
    assert (["fedld_margin", "100"] if bundled else ["fedavg", "margin", "100"]) in settings


def test_without_a_number_among_the_settings_there_are_bars(tmp_path, monkeypatch):
    panels = drawn([one({"loss": "margin"}), one({"loss": "cross_entropy"}, local_loss=0.1)], tmp_path, monkeypatch)
    assert [bar.get_height() for bar in panels[0].patches] == [0.5, 0.1]
    assert [bar.get_height() for bar in panels[2].patches] == [0.75, 0.75]


def test_a_run_that_is_missing_leaves_a_gap(tmp_path, monkeypatch):
    described = [one({"alpha": "1", "loss": "a"}), one({"alpha": "2", "loss": "a"}), one({"alpha": "1", "loss": "b"})]
    local, *_ = drawn(described, tmp_path, monkeypatch)
    assert np.isnan(local.lines[1].get_ydata()).tolist() == [True, False]


def test_what_a_reader_must_know_is_said(study):
    (found,) = find_runs([study / "fedavg_100"])
    parts = LossDecomposition(np.array([1]), np.array([[0.5]]), np.array([0.5]))
    described = describe_decompositions(
        [found, found], [DecomposedRound(3, 2, (0,), parts, None), DecomposedRound(2, 2, (0,), parts, False)]
    )
    beyond, differing = remarks_on(described)
    assert "round 3 is the one that would follow its 2 rounds" in beyond
    assert "differs in rounding" in differing
    assert len(tables_of(described)) == 1
    assert remarks_on(describe_decompositions([found], [DecomposedRound(2, 2, (0,), parts, True)])) == []
