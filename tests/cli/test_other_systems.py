"""Runs on systems that lack what only Linux, or only POSIX, has: a process that is denied all of it stands for them."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("psutil", reason="Windows needs it: pip install psutil")

LIKE_WINDOWS = """
import builtins, errno, io, os, signal, sys, tempfile
import psutil  # which asks this system in its own way

only_posix = {
    os: ("fork", "forkpty", "memfd_create", "getuid", "geteuid", "getpgid", "setsid", "killpg", "sysconf", "sched_getaffinity",
         "sched_yield", "mkfifo", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
    signal: ("pthread_sigmask", "pthread_kill", "sigwait", "SIGUSR1", "SIGUSR2", "SIGHUP", "alarm", "setitimer"),
}
kept = os.O_NONBLOCK
for module, names in only_posix.items():
    for name in names:
        delattr(module, name)
import fedfacet.storage.run_files
os.O_NONBLOCK = kept  # Python's own subprocesses and filelock want it

import fcntl, filelock, subprocess  # its locks are to be the system's, as they are on Windows
import multiprocessing.connection, multiprocessing.popen_spawn_posix, multiprocessing.resource_tracker
flags_of = lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
psutil._common.open = open
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
multiprocessing.get_all_start_methods = lambda: ["spawn"]
for name in ("fork", "forkserver"):
    del multiprocessing.context._concrete_contexts[name]

def no_proc(path, *args, **kwargs):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return open_file(path, *args, **kwargs)

def no_folders(path, *args, **kwargs):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder", path)
    return open_descriptor(path, *args, **kwargs)

def not_read_only(descriptor):
    if flags_of(descriptor) == os.O_RDONLY:
        raise OSError(errno.EBADF, "cannot be written to")
    sync(descriptor)

def unless_open(function):
    def checked(*paths, **kwargs):
        for path in map(os.path.realpath, paths):
            held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
            if path in held or path in open_file("/proc/self/maps").read().split():
                raise PermissionError(errno.EACCES, "somebody has it open", path)
        return function(*paths, **kwargs)
    return checked

def no_question(number, signal_number):
    assert signal_number, "0, which asks whether there is a process, is Ctrl-C to Windows"
    kill(number, signal_number)

kill = os.kill

tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # as Python has it on Windows
open_file, open_descriptor, sync = open, os.open, os.fsync
builtins.open = io.open = no_proc
os.open, os.fsync, os.kill = no_folders, not_read_only, no_question
for name in ("rename", "replace", "unlink", "remove"):
    setattr(os, name, unless_open(getattr(os, name)))
"""

TRAIN = """
from fedfacet.commands.train import run_command
from fedfacet.runs.run import fit

if __name__ == "__main__":
    run_command(fit)
"""

DIE_HOLDING = """
import pathlib
from fedfacet.storage.lock import lock, sole

folder = pathlib.Path(sys.argv[1])
with lock(folder) as holder, sole(folder / "train.log") as alone:
    print(holder, alone, flush=True)
    with lock(folder) as second, sole(folder / "train.log") as both:
        print(second, both, flush=True)
    if sys.argv[2:] == ["die"]:
        signal.raise_signal(signal.SIGKILL)
"""

SMALL = ("threads=1", "model.width=2", "model.hidden=4", "~callbacks.figures", "federation.rounds=2")


@pytest.fixture
def elsewhere(checkout, tmp_path):
    """Return a function that runs Python code as on a system that has only what Windows has too."""

    def elsewhere(code, *arguments):
        script = tmp_path / "script.py"
        script.write_text(LIKE_WINDOWS + code, encoding="utf-8")  # a file: processes that are spawned read it once more
        path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, script, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "cp1252"},
            capture_output=True,
            text=True,
            encoding="cp1252",
            timeout=300,
        )

    return elsewhere


def numbers(run):
    summary = json.loads((run / "summary.json").read_text())
    return summary["model_digest"], summary["final"], (run / "metrics.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [["engine=sequential"], ["engine=workers", "engine.workers=2"]], ids=["sequential", "workers"]
)
def test_a_run_comes_to_the_same_numbers(elsewhere, trained, tmp_path, engine):
    ended = elsewhere(TRAIN, *SMALL, *engine, "paths.output_dir=there")
    assert ended.returncode == 0, ended.stderr
    trained(*SMALL, "engine=sequential", "paths.output_dir=here", fast=False)
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here")
    peaks = [row.split(",")[-2] for row in (tmp_path / "there" / "timing.csv").read_text().splitlines()[1:]]
    assert all(float(peak) > 50 for peak in peaks), peaks


@pytest.mark.slow
def test_a_run_is_gone_on_with(elsewhere, trained, tmp_path):
    assert elsewhere(TRAIN, *SMALL, "federation.rounds=1", "paths.output_dir=there").returncode == 0
    ended = elsewhere(TRAIN, "resume=there", "federation.rounds=2")
    assert ended.returncode == 0, ended.stderr
    trained(*SMALL, "paths.output_dir=here", fast=False)
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here")


@pytest.mark.slow
def test_workers_of_a_sweep_are_spawned(elsewhere, trained, tmp_path):
    sweep = (*SMALL, "sweep=cells", "selector=uniform", "seed=0,1", "-m")
    ended = elsewhere(TRAIN, *sweep, "sweep.workers=2")
    assert ended.returncode == 0, ended.stderr
    said, finished, after = ended.stdout.partition("2 of 2 cells are finished.\n")
    first, *said = said.splitlines()
    assert (first.split(" in ")[0], bool(finished)) == ("2 cells", True)
    assert {line[:4] for line in said} == {"[1] ", "[2] "}
    assert "Test accuracy of the worst group in percent" in after
    cells = tmp_path / "logs" / "train" / "cells"
    there = {run.name: numbers(run) for run in cells.iterdir() if run.is_dir()}
    cells.rename(tmp_path / "there")
    trained(*sweep, fast=False)
    assert {run.name: numbers(run) for run in cells.iterdir() if run.is_dir()} == there
    assert len(there) == 2


@pytest.mark.slow
def test_a_cell_of_a_spawned_worker_that_fails_is_named(elsewhere):
    ended = elsewhere(TRAIN, *SMALL, "sweep=cells", "optimizer.lr=0.01,1e30", "seed=0", "-m", "sweep.workers=2")
    assert ended.returncode == 1
    assert "1 of 2 cells are finished." in ended.stdout
    assert "lower the learning rate" in ended.stderr


def test_locks_are_of_one_process_and_given_back_by_the_dead(elsewhere, tmp_path):
    cell = tmp_path / "cells" / "0123"
    cell.mkdir(parents=True)
    killed = elsewhere(DIE_HOLDING, cell, "die")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    free, taken = killed.stdout.splitlines()
    assert (free, taken.startswith("process "), taken.endswith(" False")) == ("None True", True, True)
    assert (cell / "lock").exists()
    ended = elsewhere(DIE_HOLDING, cell)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("None True\nprocess ")
    assert not (cell / "lock").exists()
