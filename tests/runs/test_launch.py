import logging

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from fedfacet.config import composition, preflight
from fedfacet.config.sweeping import Sweep
from fedfacet.runs.launch import run_cells, run_single
from fedfacet.runs.stock import failures


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    root, before = logging.getLogger(), dict(failures)
    handlers, level = list(root.handlers), root.level
    yield
    failures.clear()
    failures.update(before)
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers, root.level = handlers, level


def cells_of(*overrides):
    return preflight("train", ["train.py", "sweep=cells", *overrides, "-m"])[1]


def test_each_cell_has_a_job_as_hydra_makes_them(tmp_path):
    cells, seen = cells_of("selector=uniform,all", "seed=0,1", "optimizer.lr=0.5"), []
    assert cells.goes_one_by_one

    def task(config):
        own = HydraConfig.get()
        logging.getLogger("here").info("cell %s", own.job.num)
        seen.append((config.selector._target_.rpartition(".")[2], config.seed, own.job.num, own.job.id, own.mode))
        assert "hydra" not in config
        assert own.overrides.task == [*cells.overrides_of(own.job.num)]
        assert own.runtime.output_dir == str(tmp_path / cells[own.job.num][1])

    run_cells(cells, task)
    kinds = ("UniformSelector", 0), ("UniformSelector", 1), ("AllSelector", 0), ("AllSelector", 1)
    assert seen == [(*kind, number, str(number), RunMode.MULTIRUN) for number, kind in enumerate(kinds)]
    logs = [cells[number][1] / "train.log" for number in range(4)]
    assert ["cell" in line for log in logs for line in log.read_text().splitlines()] == [True] * 4, "each has its own"


def test_what_does_not_go_together_is_noted_and_the_others_run(capsys):
    cells, ran = cells_of("seed=0,1,2"), []
    cells._jobs[1].append("selector.max_gap=3")
    run_cells(cells, lambda config: ran.append(config.seed))
    assert ran == [0, 2]
    ((job, said),) = failures.items()
    assert job.name == "job 2"
    assert "Expected an option that has `selector.max_gap`" in said
    assert "Expected an option that has `selector.max_gap`" in capsys.readouterr().err


def test_hydra_composes_no_cell_but_the_first(monkeypatch):
    cells, composed = cells_of("selector=uniform,all", "seed=range(3)"), []
    monkeypatch.setattr(composition, "compose", lambda *given, **_: composed.append(given))
    run_cells(cells, lambda config: None)
    assert not composed
    assert not failures


def test_who_brings_callbacks_of_hydras_has_hydra_run_the_cells():
    assert not cells_of("seed=0,1", "+hydra.callbacks.mine._target_=hydra.experimental.callback.Callback").goes_one_by_one
    with composition.initialized():
        assert not Sweep("train", ["seed=0,1"]).goes_one_by_one


def test_a_single_job_is_hydras(tmp_path):
    seen = []

    def task(config):
        own = HydraConfig.get()
        logging.getLogger("here").info("alone")
        seen.append((config.seed, own.mode, own.runtime.output_dir, list(own.overrides.task), "hydra" in config))

    run_single(["seed=3", "paths.output_dir=run"], task, otherwise=pytest.fail)
    assert seen == [(3, RunMode.RUN, str(tmp_path / "run"), ["seed=3", "paths.output_dir=run"], False)]
    assert "alone" in (tmp_path / "run" / "train.log").read_text()
    assert {file.name for file in (tmp_path / "run" / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}


def test_what_a_single_job_raises_comes_out():
    with pytest.raises(ZeroDivisionError):
        run_single(["paths.output_dir=run"], lambda config: 1 / 0, otherwise=pytest.fail)


def test_who_brings_callbacks_of_hydras_has_hydra_run_a_single_job():
    handed_over = []
    mine = "+hydra.callbacks.mine._target_=hydra.experimental.callback.Callback"
    run_single([mine], pytest.fail, otherwise=lambda: handed_over.append(1))
    assert handed_over
