"""``sweep.workers``: one command, several processes, the same cells."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

COMMAND = ("sweep=cells", "selector=uniform", "seed=0,1,2", "-m")
LONG = ("sweep=cells", "federation.rounds=100000", "seed=0,1", "-m", "sweep.workers=2")
ENDS = re.compile(r"^\[[12]\] \S+ is finished, last round \(\d+\): average [\d.]+ %, worst [\d.]+ %", re.M)
BEGINS = re.compile(r"^\[(\d)\] \S+/(\w{16}) (begins|goes on): ", re.MULTILINE)


@pytest.fixture
def cells(tmp_path):
    return tmp_path / "logs" / "train" / "cells"


def workers_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def both_train(process):
    return process.out.exists() and process.out.read_text().count("dataset digits") == 2


def is_over(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def numbers(cells):
    kept = ("status", "final", "model_digest")
    summaries = {run.name: json.loads((run / "summary.json").read_text()) for run in cells.iterdir() if run.is_dir()}
    return {name: {key: summary[key] for key in kept} for name, summary in summaries.items()}


@pytest.mark.slow
def test_workers_share_the_cells_and_change_no_number(trained, cells, tmp_path):
    result = trained(*COMMAND, "sweep.workers=2")
    assert result.out.startswith("3 cells in logs/train/cells.\n[")
    assert "3 of 3 cells are finished.\n" in result.out
    begun = BEGINS.findall(result.out)
    assert {number for number, *_ in begun} == {"1", "2"}
    assert len({name for _, name, _ in begun}) == len(begun) == 3
    said, _, after = result.out.partition("3 of 3 cells are finished.\n")
    assert all(line.startswith(("[1] ", "[2] ")) for line in said.splitlines()[1:])
    assert len(ENDS.findall(said)) == 3
    assert "Test accuracy of the worst group in percent" in after
    assert "is left to" not in result.out
    cells.rename(tmp_path / "before")
    trained("sweep=cells", "selector=uniform", "seed=1", "-m")
    assert numbers(cells).items() <= numbers(tmp_path / "before").items()
    assert (len(numbers(cells)), len(numbers(tmp_path / "before"))) == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_workers(start, cells, number):
    process = start(*LONG)
    process.wait_until(lambda: both_train(process))
    workers = workers_of(process.pid)
    process.kill(number)
    stopped = process.result()
    assert stopped.status == 128 + number, stopped.err
    assert "Traceback" not in stopped.out + stopped.err
    assert stopped.out.count("Stopped; to go on, give the same command again.") == 2
    assert len(workers) == 2
    assert all(map(is_over, workers))
    assert not list(cells.glob("*/lock"))


def test_workers_stop_when_the_command_is_killed(start):
    process = start(*LONG)
    process.wait_until(lambda: both_train(process))
    workers = workers_of(process.pid)
    process.kill(signal.SIGKILL)
    until(lambda: all(map(is_over, workers)))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_others_go_on(start, trained, cells):
    command = (
        "sweep=cells",
        "selector=uniform",
        "seed=0,1,2",
        "-m",
        "local.amount=20",
        "federation.rounds=8",
        "sweep.workers=2",
    )
    process = start(*command)
    process.wait_until(lambda: both_train(process))
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    result = process.result()
    assert "worker 1 was killed by SIGKILL\n" in result.err
    left = result.err.count("not finished: ")  # none, where the other worker came to its cell afterwards
    assert (result.status, f"{3 - left} of 3 cells are finished.\n" in result.out) == (min(left, 1), True)
    assert "3 of 3 cells are finished.\n" in trained(*command).out


@pytest.mark.slow
def test_a_cell_that_fails_is_named_with_its_reason(train):
    result = train("sweep=cells", "selector=uniform", "optimizer.lr=0.01,1e30", "seed=0", "-m", "sweep.workers=2")
    assert result.status == 1
    assert "1 of 2 cells are finished.\n" in result.out
    assert result.err.count("not finished: ") == 1
    assert "lower the learning rate" in result.err


@pytest.mark.parametrize("workers", ["0", "-1", "many", "true", "1.5", "null"])
def test_what_is_no_number_of_workers_is_refused(refused, workers):
    sentence = refused("sweep=cells", "seed=0,1", "-m", f"sweep.workers={workers}")
    assert "`sweep.workers` to be" in sentence


def test_workers_without_a_sweep_are_refused(refused):
    assert "add sweep=cells and -m" in refused("sweep.workers=auto")
    assert "add sweep=cells and -m" in refused("sweep.workers=2", "seed=0,1", "-m")
