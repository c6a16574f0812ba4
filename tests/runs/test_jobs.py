import logging
import signal
import sys

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from fedfacet.config import composition, preflight
from fedfacet.runs.job import ETA, Job, failures
from fedfacet.runs.jobs import launch, run_job


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

    launch(cells, task, pytest.fail)
    kinds = ("UniformSelector", 0), ("UniformSelector", 1), ("AllSelector", 0), ("AllSelector", 1)
    assert seen == [(*kind, number, str(number), RunMode.MULTIRUN) for number, kind in enumerate(kinds)]
    logs = [cells[number][1] / "train.log" for number in range(4)]
    assert ["cell" in line for log in logs for line in log.read_text().splitlines()] == [True] * 4, "each has its own"


def test_what_does_not_go_together_is_noted_and_the_others_run(capsys):
    cells, ran = cells_of("seed=0,1,2"), []
    cells._jobs[1].append("selector.max_gap=3")
    launch(cells, lambda config: ran.append(config.seed), pytest.fail)
    assert ran == [0, 2]
    ((job, said),) = failures.items()
    assert job.name == "job 2"
    assert "Expected an option that has `selector.max_gap`" in said
    assert "Expected an option that has `selector.max_gap`" in capsys.readouterr().err


def test_hydra_composes_no_cell(monkeypatch):
    """What they choose is merged from yamls that are read once, and values are set on copies."""
    cells, made = cells_of("selector=uniform,all", "seed=range(3)"), []
    whole = composition.compose
    monkeypatch.setattr(composition, "compose", lambda *given, **how: made.append(given) or whole(*given, **how))
    launch(cells, lambda config: None, pytest.fail)
    assert not made
    assert not failures


def test_jobs_that_are_no_cells_run_in_order_and_all_of_them_though_one_breaks_down(monkeypatch, tmp_path):
    argv = ["train.py", "seed=0,1,2", "paths.sweep_dir=many", "-m"]
    monkeypatch.setattr(sys, "argv", argv)
    (_, jobs), ran = preflight("train", argv), []

    def task(config):
        ran.append(config.seed)
        return 1 / (config.seed - 1)

    with pytest.raises(ZeroDivisionError):
        launch(jobs, task, pytest.fail)
    assert ran == [0, 1, 2]
    assert OmegaConf.load(tmp_path / "many" / "multirun.yaml").hydra.overrides.task == ["seed=0,1,2", "paths.sweep_dir=many"]


MINE = "+hydra.callbacks.mine._target_=hydra.experimental.callback.Callback"


@pytest.mark.parametrize("given", [[MINE], ["sweep=cells", "seed=0,1", MINE, "-m"], ["--help"]])
def test_callbacks_of_hydras_and_help_are_left_to_hydra(monkeypatch, given):
    monkeypatch.setattr(sys, "argv", ["train.py", *given])
    handed_over = []
    launch(preflight("train", sys.argv)[1], pytest.fail, lambda: handed_over.append(1))
    assert handed_over


def alone(monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["train.py", *given])
    return preflight("train", sys.argv)[1]


def test_a_single_job_is_hydras(tmp_path, monkeypatch):
    seen = []

    def task(config):
        own = HydraConfig.get()
        logging.getLogger("here").info("alone")
        seen.append((config.seed, own.mode, own.runtime.output_dir, list(own.overrides.task), "hydra" in config))

    launch(alone(monkeypatch, "seed=3", "paths.output_dir=run"), task, pytest.fail)
    assert seen == [(3, RunMode.RUN, str(tmp_path / "run"), ["seed=3", "paths.output_dir=run"], False)]
    assert "alone" in (tmp_path / "run" / "train.log").read_text()
    assert {file.name for file in (tmp_path / "run" / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}


def test_what_a_single_job_raises_comes_out(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        launch(alone(monkeypatch, "paths.output_dir=run"), lambda config: 1 / 0, pytest.fail)


def test_a_job_that_breaks_down_is_noted_where_others_run(tmp_path, capsys):
    config, run_dir = preflight("train", ["train.py", "seed=0,1", "paths.sweep_dir=many", "-m"])[1][0]
    (tmp_path / run_dir).mkdir(parents=True)
    job, before = Job(config, run_dir, ["seed=0"]), signal.getsignal(signal.SIGINT)

    def train(job):
        raise ZeroDivisionError("nothing to divide by")

    try:
        assert run_job(job, train, verify=None, others_go_on=True, eta=ETA(2)) is None
        assert failures == {run_dir: "seed=0: ZeroDivisionError: nothing to divide by"}
        assert "Traceback" in capsys.readouterr().err
        with pytest.raises(ZeroDivisionError):
            run_job(job, train, verify=None, others_go_on=False, eta=ETA(1))
    finally:
        signal.signal(signal.SIGINT, before)
