from dataclasses import replace

import pytest

from fedfacet.build import build, load_data
from fedfacet.config import compose_job
from fedfacet.errors import Interrupted
from fedfacet.plots import figures
from fedfacet.plots.figures import Figures
from fedfacet.plots.run import plot_partition

PICTURES = {"partition.png", "curves.png", "selection.png"}
SMALL = ("selector=uniform", "federation.cohort_size=2", "local.unit=steps", "local.amount=1", "federation.rounds=2")


@pytest.fixture
def federation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _ = compose_job("train", [*SMALL, "callbacks=[evaluate,csv_log]"])
    federation = build(config, tmp_path)
    federation.callbacks["figures"] = Figures(run_dir=tmp_path, data=load_data(config))
    return federation


def pictures(folder):
    return {file.name for file in folder.iterdir()} & PICTURES


def test_a_finished_run_has_all_pictures(federation, tmp_path):
    federation.fit()
    assert pictures(tmp_path) == PICTURES
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in PICTURES)


def test_an_interrupted_run_has_the_pictures_of_its_rounds_and_a_resumed_one_draws_them_anew(federation, tmp_path, stop):
    stop(federation, after=1)
    with pytest.raises(Interrupted):
        federation.fit()
    assert pictures(tmp_path) == PICTURES
    (tmp_path / "partition.png").write_bytes(b"drawn once")
    before = (tmp_path / "curves.png").read_bytes(), (tmp_path / "selection.png").read_bytes()
    federation.fit()
    assert (tmp_path / "partition.png").read_bytes() == b"drawn once"
    assert (tmp_path / "curves.png").read_bytes() != before[0]
    assert (tmp_path / "selection.png").read_bytes() != before[1]


def test_without_a_round_there_is_nothing_to_draw_but_the_partition(federation, tmp_path, stop):
    stop(federation, after=0)
    with pytest.raises(Interrupted):
        federation.fit()
    assert pictures(tmp_path) == {"partition.png"}


def test_a_failed_run_draws_no_results(federation, tmp_path, fail):
    fail(federation, round=2)
    with pytest.raises(RuntimeError, match="broken"):
        federation.fit()
    assert pictures(tmp_path) == {"partition.png"}


def test_without_metrics_there_are_no_curves(federation, tmp_path):
    del federation.callbacks["csv_log"]
    federation.fit()
    assert pictures(tmp_path) == PICTURES - {"curves.png"}


def test_runs_on_the_same_partition_share_its_picture(tmp_path, monkeypatch):
    """The same bytes, drawn once; another partition, or other names of it, has its own."""
    drawn = []
    monkeypatch.setattr(figures, "_last", {})
    monkeypatch.setattr(figures, "plot_partition", lambda *given, **named: drawn.append(1) or plot_partition(*given, **named))
    data, pictures = load_data(compose_job("train", list(SMALL))[0]), []
    other = replace(data, partition=replace(data.partition, indices=data.partition.indices[::-1]))
    renamed = replace(data, dataset=replace(data.dataset, class_names=("small", "large")))
    for number, one in enumerate([data, replace(data), other, renamed, data]):
        (folder := tmp_path / str(number)).mkdir()
        figures.Figures(run_dir=folder, data=one).on_state_complete(None)
        pictures.append((folder / "partition.png").read_bytes())
    assert len(drawn) == 4
    assert pictures[0] == pictures[1] == pictures[4]
    assert len(set(pictures)) == 3
