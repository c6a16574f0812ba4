"""A run with worker processes, stopped and gone on with; nothing may be left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROUNDS = "federation.rounds=8"
WORKERS = ("engine=workers", "engine.workers=2")


def results(run):
    """What must not depend on who ran the clients."""
    summary = json.loads((run / "summary.json").read_text())
    kept = {name: summary[name] for name in ("status", "rounds", "final", "best", "model_digest", "participation_counts")}
    return kept | {name: (run / name).read_bytes() for name in ("metrics.csv", "model/model.safetensors", "partition.json")}


def rounds_in(run):
    file = run / "metrics.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


def descendants(pid):
    """All processes that come from one, the server of forks between them included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pids, seconds=30):
    """Wait until none of them is left."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in status_of(pid)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def status_of(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def sockets_of(pids):
    """The sockets with a name in the file system that processes listen at."""
    open_files = [file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
    inodes = {os.readlink(file) for file in open_files}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {Path(line[7]) for line in lines if len(line) == 8 and f"socket:[{line[6]}]" in inodes and line[7].startswith("/")}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.slow
def test_stopped_killed_and_gone_on_with_by_another_engine_it_ends_as_if_it_had_not_been(start, trained, tmp_path):
    trained(ROUNDS, "paths.output_dir=whole")
    run = tmp_path / "run"
    process = start(ROUNDS, *WORKERS, "paths.output_dir=run", "callbacks.save_checkpoint.every_n_rounds=1000")
    process.wait_until(lambda: rounds_in(run) >= 2)
    children = descendants(process.pid)
    assert len(children) >= 2
    process.kill(signal.SIGTERM)
    stopped = process.result()
    assert stopped.status == 143, stopped.err
    assert "Traceback" not in stopped.err
    assert not gone(children)
    process = start("resume=run", fast=False)
    process.wait_until(lambda: rounds_in(run) >= 4 or (run / "model").exists())
    children = descendants(process.pid)
    (socket,) = sockets_of(children)
    assert socket.parent.name.startswith("pymp-")
    process.kill(signal.SIGKILL)
    process.wait()
    assert not gone(children), "workers must end with the process that they work for, however that ends"
    assert not socket.parent.exists()
    trained("resume=run", "engine=sequential", fast=False)
    assert results(run) == results(tmp_path / "whole")


def test_the_script_is_the_main_module_of_workers_and_a_run_goes_on_when_nobody_reads_what_it_says(checkout, tmp_path):
    """A worker imports the script again; it must not run it. Nobody reads on, as with ``2>&1 | head -1``."""
    reading, writing = os.pipe()
    workers = ("engine=workers", "engine.workers=1")
    small = ["debug=smoke", "federation.rounds=3", "callbacks.progress.seconds_between_lines=0", *workers]
    process = subprocess.Popen(
        [sys.executable, str(checkout / "src" / "train.py"), *small, "paths.output_dir=run"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    with open(reading) as said:
        said.readline()
    assert process.wait(300) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["engine"], summary["rounds"]) == ("WorkersEngine", 3)


def test_what_auto_chose_is_written_and_used_again(trained, tmp_path):
    trained("engine=auto", "federation.rounds=1", "paths.output_dir=run")
    chosen = (tmp_path / "run" / "config.yaml").read_text().partition("choice:")[2].partition("\n  ")[2].splitlines()[0]
    assert "engine: sequential" in chosen  # for a single round no process is worth its start
    resumed = trained("resume=run", "federation.rounds=3", fast=False)
    assert "engine=auto" not in resumed.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["engine"] == "SequentialEngine"
