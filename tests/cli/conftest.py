"""Run the real scripts, each in a process of its own; a few tests start it without the help of a process that forks it."""

import functools
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import hydra
import pytest

from fedfacet.commands.train import run_command

FAST = (
    "threads=1", "model.width=2", "model.hidden=4", "heterogeneity=true", "~callbacks.figures", "federation.rounds=2",
)  # fmt: skip
"""A run of about a second."""


@pytest.fixture(scope="session")
def start_in(start_script):
    """Return a function that starts ``src/train.py``, or another script, in a folder."""

    def start_in(folder, *arguments, script="train.py", fast=True, **how):
        return start_script(folder, script, *(FAST if fast else ()), *arguments, **how)

    return start_in


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


@pytest.fixture(scope="session")
def whole(start_in, tmp_path_factory):
    """Return a function: arguments -> the folder of an uninterrupted run with them, which is run once and left as it is."""

    @functools.cache
    def whole(*arguments):
        folder = tmp_path_factory.mktemp("whole")
        process = start_in(folder, *arguments, "paths.output_dir=run")
        assert process.wait() == 0, process.err.read_text()
        return folder / "run"

    return whole


@pytest.fixture(scope="session")
def uninterrupted(whole, results):
    """Return a function: arguments -> the results of the uninterrupted run with them."""
    return lambda *arguments: results(whole(*arguments))


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
