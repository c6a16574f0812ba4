"""Run the real scripts, each in a process of its own.

Importing torch and lightning takes seconds, so a server imports them once and forks. What runs in the fork is the script,
with a command line, a working folder, signals and an exit status of its own; a few tests start it without that help.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import hydra
import pytest

from fedfacet.runs.command import run_command

SERVER = """
import atexit, contextlib, gc, json, os, runpy, sys, traceback
import fedfacet.analysis.console, fedfacet.build, fedfacet.callbacks.evaluate, fedfacet.data.digits, hydra, sklearn.datasets
import fedfacet.objectives.classification, fedfacet.runs.command, fedfacet.runs.opened, rich._emoji_codes, rich.table
import fedfacet.clients.queries.true_heterogeneity, hydra._internal.logging_config, torch.utils.serialization
with contextlib.suppress(ImportError):
    import optuna.samplers, optuna.storages.journal

fedfacet.config.compose_job("train", [])  # reads the yamls, which is half of what composing takes
gc.freeze()  # what is imported stays: without this every collection and every exit in a fork goes through all of it
for line in sys.stdin:
    request = json.loads(line)
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    if pid := os.fork():
        print(pid, flush=True)
        continue
    for number, (file, mode) in enumerate([(os.devnull, "r"), (request["out"], "w"), (request["err"], "w")]):
        with open(file, mode) as opened:
            os.dup2(opened.fileno(), number)
    os.chdir(request["cwd"])
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.argv = request["argv"]
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
os._exit(0)
"""

FAST = (
    "threads=1", "model.width=2", "model.hidden=4", "heterogeneity=true", "~callbacks.figures", "federation.rounds=2",
)  # fmt: skip
"""A run of about a second."""


PATIENCE = 300
"""Seconds until a process counts as stuck; on a machine with other work a run of one second takes a minute."""


@dataclass(frozen=True)
class Result:
    """What a process said, and how it ended."""

    status: int
    out: str
    err: str


class Server:
    """Starts scripts by forking a process that has imported what they need."""

    def __init__(self, src):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(src)},
        )

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.communicate(timeout=PATIENCE)


class Started:
    """A process under way."""

    def __init__(self, server, pid, out, err):
        self.server, self.pid, self.out, self.err = server, pid, out, err
        self.status = None

    def poll(self):
        if self.status is None:
            self.status = self.server.ask(poll=self.pid)
        return self.status

    def kill(self, number):
        """Send a signal, unless the process is over."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill(signal.SIGKILL)
                raise TimeoutError(f"still running after {seconds} s; it said {self.err.read_text()!r}")
            time.sleep(0.01)
        return self.status

    def result(self, seconds=PATIENCE):
        """Wait and return all that is left."""
        return Result(self.wait(seconds), self.out.read_text(), self.err.read_text())

    def wait_until(self, condition, seconds=PATIENCE):
        """Return as soon as the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.poll() is None, f"over with {self.status} too early: {self.err.read_text()}"
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.002)


@pytest.fixture(scope="session")
def start_in(checkout):
    """Return a function that starts ``src/train.py``, or another script there, in a folder."""
    server = Server(checkout / "src")

    def start_in(folder, *arguments, script="train.py", fast=True, out=None, err=None, env=None):
        number = len(list(folder.glob(".*.err")))
        out, err = (Path(given or folder / f".{number}.{name}") for name, given in (("out", out), ("err", err)))
        argv = [str(checkout / "src" / script), *(FAST if fast else ()), *map(str, arguments)]
        pid = server.ask(argv=argv, cwd=str(folder), out=str(out), err=str(err), env=env or {})
        return Started(server, pid, out, err)

    yield start_in
    server.close()


@pytest.fixture(scope="session")
def finished(start_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    process = start_in(folder, "federation.rounds=2", "paths.output_dir=run", "callbacks.save_checkpoint.keep=all")
    assert process.wait() == 0, process.err.read_text()
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of a finished run that each test may spoil, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def start(start_in, tmp_path):
    """Return a function that starts ``src/train.py`` in ``tmp_path``."""
    started = []

    def start(*arguments, **how):
        started.append(start_in(tmp_path, *arguments, **how))
        return started[-1]

    yield start
    for process in started:
        process.kill(signal.SIGKILL)
        process.wait()


@pytest.fixture
def train(start):
    """Return a function that runs ``src/train.py`` to its end."""
    return lambda *arguments, **how: start(*arguments, **how).result()


@pytest.fixture
def trained(train):
    """Return a function that runs ``src/train.py`` to a good end."""

    def trained(*arguments, **how):
        result = train(*arguments, **how)
        assert result.status == 0, result.err
        return result

    return trained


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Return a function that gives ``src/train.py`` bad input and returns its sentence; nothing may have been written.

    It runs in this process: the script checks everything before Hydra starts a job, and that no job is started is asserted.
    """
    monkeypatch.chdir(tmp_path)

    def accepted(*_, **__):
        raise AssertionError("the input was accepted")

    monkeypatch.setattr(hydra, "main", accepted)

    def refused(*arguments):
        before = snapshot(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            run_command(accepted)
        out, err = capfd.readouterr()
        assert (stop.value.code, out) == (2, "")
        assert re.fullmatch(r"error: (Expected )[^\n]+\n", err), err
        assert snapshot(tmp_path) == before
        return err.removeprefix("error: ").rstrip()

    return refused


@pytest.fixture(scope="session")
def results():
    """Return a function: run folder -> what must not depend on whether the run was stopped."""
    kept = (
        "status",
        "rounds",
        "final",
        "best",
        "model_digest",
        "participation_counts",
        "bytes_up",
        "bytes_down",
        "query_bytes_up",
    )

    def results(run):
        summary = json.loads((run / "summary.json").read_text())
        files = ("metrics.csv", "model/model.safetensors", "partition.json")
        return {name: summary[name] for name in kept} | {name: (run / name).read_bytes() for name in files}

    return results


@pytest.fixture(scope="module")
def uninterrupted(start_in, tmp_path_factory, results):
    """Return a function that returns the results of an uninterrupted run with some arguments; each is run once."""
    known = {}

    def uninterrupted(*arguments):
        if arguments not in known:
            folder = tmp_path_factory.mktemp("uninterrupted")
            process = start_in(folder, *arguments, "paths.output_dir=run")
            assert process.wait() == 0, process.err.read_text()
            known[arguments] = results(folder / "run")
        return known[arguments]

    return uninterrupted


@pytest.fixture(scope="session")
def files_of():
    """Return a function that reads all files of a folder."""
    return snapshot


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.is_socket() and not re.fullmatch(r"\.\d+\.(out|err)", path.name)
    }
