"""``sweep=``: runs in folders named by what their numbers depend on, skipped when finished, resumed when broken off."""

import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from matplotlib.image import imread
from omegaconf import OmegaConf

from fedfacet.commands import report
from fedfacet.config import cell_digest, plain, preflight
from fedfacet.storage.lock import LOCK_FILE

ROUNDS = "federation.rounds=12"
BEGINS = re.compile(r"^(\S+)/logs/train/cells/(\w{16}) (begins|goes on): (.+)$", re.MULTILINE)


@pytest.fixture
def cells(tmp_path):
    return tmp_path / "logs" / "train" / "cells"


def worked_at(out):
    """The cells that a process said it ran: folder -> (begins or goes on, what was asked)."""
    return {name: (how, asked) for _, name, how, asked in BEGINS.findall(out)}


def results(run):
    """What must not depend on how often a run was stopped."""
    summary = json.loads((run / "summary.json").read_text())
    kept = {name: summary[name] for name in ("status", "rounds", "final", "best", "model_digest", "participation_counts")}
    return kept | {name: (run / name).read_bytes() for name in ("metrics.csv", "partition.json")}


def rounds_in(run):
    file = run / "metrics.csv"
    return file.read_bytes().count(b"\n") - 1 if file.exists() else 0


def test_finished_cells_are_skipped_and_not_touched(trained, refused, cells, files_of):
    first = trained("sweep=cells", "selector=uniform", "seed=0", "-m")
    assert "1 cells in logs/train/cells.\n" in first.out
    assert len(worked_at(first.out)) == 1
    assert "1 of 1 cells are finished.\n" in first.out
    before = files_of(cells)
    command = ("sweep=cells", "selector=uniform", "seed=0,1", "-m")
    ((name, (how, asked)),) = worked_at(trained(*command).out).items()
    assert how == "begins"
    assert "seed=1" in asked.split()
    after = files_of(cells)
    changed = {
        file.split("/")[0] for file in after.keys() | before.keys() if before.get(file, "absent") != after.get(file, "absent")
    }
    assert changed == {name}
    # And what no number depends on said otherwise.
    *said, table, page = trained(*command, "callbacks.save_checkpoint.every_n_rounds=2").out.splitlines()
    assert said[:2] == ["2 cells in logs/train/cells.", "2 of 2 cells are finished."]
    (row,) = (line for line in said if line.startswith("│ uniform "))
    assert row.count("±") == 2  # the last round and the best one, over two seeds
    assert row.count("(2)") == 2
    assert re.fullmatch(r"a table: +\S+ \S*src/report\.py logs/train/cells", table)
    assert re.fullmatch(r"a page for the browser: +\S+ \S*src/report\.py logs/train/cells --html report\.html", page)
    assert files_of(cells) == after
    assert not (cells / name / LOCK_FILE).exists()
    longer = refused(f"resume=logs/train/cells/{name}", "federation.rounds=9")
    assert "give the sweep's command with federation.rounds=9, for a cell of its own." in longer


@pytest.mark.slow
def test_hydra_and_the_check_beforehand_name_a_cell_alike(trained, cells, monkeypatch, tmp_path):
    """With settings final once ``where_present`` and ``debug=smoke`` are applied, and one that only a swept option has."""
    swept = ("selector=choice(diversity_score)", "selector.intra_weight=0.25")
    command = ("sweep=cells", "debug=smoke", "heterogeneity=estimated", "seed=3", *swept, "-m")
    trained(*command, fast=False)
    monkeypatch.chdir(tmp_path)
    _, [(job, run_dir)] = preflight("train", ["train.py", *command])
    assert (tmp_path / run_dir / "summary.json").is_file()
    assert run_dir.name == cell_digest(plain(job))
    assert [run.name for run in cells.iterdir() if (run / "config.yaml").exists()] == [run_dir.name]


def test_a_killed_cell_is_resumed_and_ends_as_if_it_had_not_been(start, trained, cells, whole):
    command = ("sweep=cells", ROUNDS, "selector=feddiverse", "seed=0", "-m")
    process = start(*command)
    process.wait_until(lambda: any(rounds_in(run) >= 2 for run in cells.glob("*")))
    process.kill(signal.SIGKILL)
    process.wait()
    (broken,) = (run for run in cells.iterdir() if run.is_dir())
    assert (broken / LOCK_FILE).exists(), "what a killed process leaves"
    assert not (broken / "summary.json").exists()
    result = trained(*command)
    assert {name: how for name, (how, _) in worked_at(result.out).items()} == {broken.name: "goes on"}
    assert "1 of 1 cells are finished.\n" in result.out
    assert results(broken) == results(whole(ROUNDS))


@pytest.mark.slow
def test_ctrl_c_ends_the_sweep_saves_and_says_how_to_go_on(start, trained, cells):
    command = ("sweep=cells", ROUNDS, "local.amount=20", "seed=0,1", "-m", "callbacks.save_checkpoint.every_n_rounds=1000")
    process = start(*command)
    process.wait_until(lambda: any(rounds_in(run) >= 1 for run in cells.glob("*")))
    process.kill(signal.SIGINT)
    stopped = process.result()
    assert stopped.status == 130
    *_, told, counted, left = stopped.err.splitlines()
    assert (told, counted) == ("Stopped; to go on, give the same command again.", "1 of 2 jobs have not begun:")
    assert "seed=1" in left.split()
    (broken,) = (run for run in cells.iterdir() if run.is_dir())
    assert not (broken / LOCK_FILE).exists()
    assert (broken / "checkpoints" / "last.ckpt").exists()
    single = trained(f"resume={broken}", fast=False)  # a single cell can be gone on with by itself
    assert "Test accuracy" in single.out
    assert next(iter(worked_at(trained(*command).out).values()))[0] == "begins"


@pytest.mark.slow
def test_two_processes_share_the_cells(start, cells, tmp_path):
    command = ("sweep=cells", "selector=uniform", "federation.rounds=1", "seed=0,1,2", "-m")
    started = [start(*command, out=tmp_path / f"{name}.out", err=tmp_path / f"{name}.err") for name in "ab"]
    ended = [process.result(seconds=120) for process in started]
    assert [result.status for result in ended] == [0, 0], ended
    first, second = (worked_at(result.out) for result in ended)
    assert first.keys().isdisjoint(second), "no cell twice"
    assert len(first) + len(second) == 3
    assert {how for how, _ in [*first.values(), *second.values()]} == {"begins"}
    assert first, "who comes first finds something to do"
    runs = [run for run in cells.iterdir() if run.is_dir()]
    assert len(runs) == 3
    for run in runs:
        assert results(run)["status"] == "finished"
        assert not (run / LOCK_FILE).exists()


@pytest.mark.slow
def test_a_cell_that_another_process_works_at_is_left_to_it(start, train, cells):
    endless = ("sweep=cells", "local.amount=1000000", "seed=0", "-m")
    process = start(*endless)
    process.wait_until(lambda: any(cells.glob("*/checkpoints/last.ckpt")))
    process.kill(signal.SIGSTOP)
    other = train(*endless)
    assert other.status == 0
    assert worked_at(other.out) == {}
    assert f" is left to process {process.pid} on " in other.out
    assert other.out.endswith("0 of 1 cells are finished, 1 under way in other processes.\n")
    (run,) = (run for run in cells.iterdir() if run.is_dir())
    alone = train(f"resume={run}", fast=False)
    assert alone.status == 2
    assert f"is held by process {process.pid} on " in alone.err


def test_a_cell_that_fails_is_named_in_the_end_and_the_others_run(train, cells):
    result = train("sweep=cells", "federation.cohort_size=99,9", "selector=uniform", "-m")
    assert result.status == 1
    assert "Traceback" not in result.err
    refusal = "Expected `federation.cohort_size` between 1 and the federation's 24 clients, but got 99: "
    assert f"error: {refusal}" in result.err
    assert "1 of 2 cells are finished.\n" in result.out
    named = result.err.splitlines()[-1]
    failed, finished = worked_at(result.out)
    assert re.fullmatch(rf"not finished: \S+/{failed}: .*federation\.cohort_size=99.*: {re.escape(refusal)}.*", named)
    assert (cells / finished / "summary.json").exists()
    assert "Refused: Expected" in (cells / failed / "train.log").read_text()
    # Given again, it is tried again; the other is not.
    assert list(worked_at(train("sweep=cells", "federation.cohort_size=99,9", "selector=uniform", "-m").out)) == [failed]


@pytest.mark.slow
def test_what_breaks_down_in_a_cell_does_not_end_the_sweep(train, cells):
    result = train("sweep=cells", "optimizer.lr=1e30,0.1", "selector=uniform", "-m")
    assert result.status == 1
    assert "1 of 2 cells are finished.\n" in result.out
    assert "Expected a finite update" in result.err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("campaign", range(3))
def test_campaigns_of_random_kills(start, trained, cells, tmp_path, campaign):
    """Two processes at once, killed at any moment, until all is done."""
    moments = random.Random(f"sweep {campaign}")
    same = (ROUNDS, "participation=dropouts", "local.amount=10")
    command = ("sweep=cells", *same, "selector=feddiverse,uniform", "seed=0,1", "-m")
    for attempt in range(15):
        names = [tmp_path / f"{attempt}{name}" for name in "ab"]
        processes = [start(*command, out=f"{name}.out", err=f"{name}.err") for name in names]
        for process in processes:
            time.sleep(moments.uniform(1, 12))
            process.kill(moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        for process, name in zip(processes, names, strict=True):
            process.wait()
            assert "Traceback" not in name.with_suffix(".err").read_text()
    trained(*command)
    for selector in ("feddiverse", "uniform"):
        for seed in (0, 1):
            trained(*same, f"selector={selector}", f"seed={seed}", f"paths.output_dir={selector}{seed}")
    runs = [results(run) for run in cells.iterdir() if run.is_dir()]
    assert len(runs) == 4
    for alone in ("feddiverse0", "feddiverse1", "uniform0", "uniform1"):
        assert results(tmp_path / alone) in runs


@pytest.mark.slow
def test_a_table_from_sweep_to_report(trained, cells, tmp_path, monkeypatch, capsys):
    """On the digits, as far as it goes: two rows of seven, one seed of three."""
    command = ("sweep=table1", "experiment=digits_gsc", "method=uniform,round_robin", "seed=0", "-m", "federation.rounds=2")
    trained(*command, "debug=smoke", fast=False)
    assert len([run for run in cells.iterdir() if run.is_dir()]) == 2
    monkeypatch.chdir(tmp_path)
    table = ["--layout", "table1", "logs/train/cells"]
    assert report.main([*table, "--where", "dataset=digits"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [[text.strip() for text in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    assert rows[0] == ["client selection", "digits gsc"]
    assert [head for head, _ in rows[2:]] == [
        "FedDiverse",
        "Uniform random",
        "Round robin",
        "FedNova",
        "pow-d",
        "FedPNS",
        "HCSFed",
    ]
    assert ["(1)" in cell for _, cell in rows[2:]] == [False, True, True, False, False, False, False]
    assert "Missing are 19 of 21 runs: of 7 cells 5 have none, 2 fewer than 3." in out
    assert report.main(table) == 0
    assert "Left out are the columns that no run has a cell in: `Spawrious GSC`, " in capsys.readouterr().out


@pytest.mark.slow
def test_figure_4_from_sweep_to_picture(trained, checkout, tmp_path):
    """Four of the paper's 125 cells on the digits."""
    trained(
        "sweep=sensitivity", "experiment=digits_gsc", "heterogeneity.q=0.1,0.9", "heterogeneity.bias_steps=5,25",
        "heterogeneity.attribute_steps=25", "seed=0", "threads=1", "~callbacks.figures", "-m", fast=False,
    )  # fmt: skip
    errors = {}
    for file in (tmp_path / "logs" / "train" / "sensitivity").glob("*/summary.json"):
        settings = OmegaConf.load(file.with_name("config.yaml")).heterogeneity
        errors[settings.q, settings.bias_steps] = json.loads(file.read_text())["heterogeneity_error"]["distance_mean"]
    assert sorted(errors) == [(0.1, 5), (0.1, 25), (0.9, 5), (0.9, 25)]
    assert len(set(errors.values())) > 1
    script = [sys.executable, str(checkout / "src" / "report.py"), "--layout", "sensitivity", "logs/train/sensitivity"]
    metric = "heterogeneity_error/distance_mean"
    done = subprocess.run([*script, "--metric", metric], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    q, bias_steps = min(errors, key=lambda place: (errors[place], place))
    best = f"{min(errors.values()):.4f} at heterogeneity.q={q}, heterogeneity.bias_steps={bias_steps}, "
    assert done.stdout.startswith(f"wrote logs/report/sensitivity.png: smallest `{metric}` on digits gsc: {best}")
    assert done.stdout.endswith("missing are 121 of 125 cells.\n")
    pixels = imread(tmp_path / "logs" / "report" / "sensitivity.png")[..., :3]
    assert min(pixels.shape[:2]) > 100
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100, "maps, a frame and letters"


class TestBadInput:
    def test_a_sweep_without_m(self, refused):
        assert refused("sweep=cells", "seed=1") == (
            "Expected sweep=cells with a run per combination, but got it for a single run: add `-m`."
        )

    def test_two_sweeps(self, refused):
        assert "one sweep at a time" in refused("sweep=table1,table3", "-m")

    def test_a_misspelt_sweep(self, refused):
        assert "did you mean `sweep=table1`?" in refused("sweep=tabel1", "-m")

    def test_a_mistake_in_any_cell_is_refused_before_the_first(self, refused):
        assert "`selector.pretraining_rounds`" in refused(
            "sweep=cells", "selector=feddiverse,uniform", "selector.pretraining_rounds=1", "-m"
        )

    def test_several_processes_for_one_cell(self, refused, monkeypatch):
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        assert "Expected a process per cell" in refused("sweep=cells", "engine=distributed", "seed=0,1", "-m")


def test_missing_data_are_said_before_the_first_cell(start, cells, tmp_path):
    command = ("sweep=cells", "experiment=digits_gsc,celeba_gsc", "federation.rounds=1", f"paths.data_dir={tmp_path / 'none'}")
    stopped = start(*command, "-m", fast=False).result()
    assert stopped.status == 2
    assert re.match(r"error: Expected list_attr_celeba\.txt of CelebA in \S+none/celeba", stopped.err)
    assert not cells.exists()


def test_a_stopped_sweep_names_the_jobs_that_have_not_begun_and_what_runs_them(start, tmp_path):
    """Where options of the user's own lie is among what a job needs."""
    mine = tmp_path / "my_conf" / "selector" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("_target_: fedfacet.selectors.uniform.UniformSelector\n")
    searchpath = f"hydra.searchpath=['file://{tmp_path / 'my_conf'}']"
    jobs = ("seed=0,1,2", "selector=mine", "federation.rounds=500", "paths.sweep_dir=sweep", "logger=[]")
    process = start(searchpath, *jobs, "-m")
    process.wait_until(lambda: rounds_in(tmp_path / "sweep" / "0") >= 1)
    process.kill(signal.SIGINT)
    stopped = process.result()
    assert stopped.status == 130
    assert "2 of 3 jobs have not begun:" in stopped.err
    commands = [shlex.split(line) for line in stopped.err.splitlines()[-2:]]
    assert [command[-1] for command in commands] == [f"paths.output_dir={tmp_path / 'sweep' / name}" for name in "12"]
    for number, (python, script, *overrides) in enumerate(commands, start=1):
        assert "python" in python
        assert script.endswith("src/train.py")
        (job,) = preflight("train", ["train.py", *overrides])[1]
        assert (job[0].seed, job[0].federation.rounds, job[0].choices.selector) == (number, 500, "mine")
