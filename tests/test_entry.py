"""How commands begin and end: whatever becomes of their streams, and whatever runs short."""

import errno
import os
import re
import signal
import sys
from functools import partial

import pytest

from fedfacet.__main__ import USAGE, main
from fedfacet.callbacks.progress import Progress
from fedfacet.commands import describe, report
from fedfacet.entry import at_import, enter, is_printed_here, reader_may_leave, sentence_of, short_of, shown
from fedfacet.errors import ConfigError, EngineError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the streams of a process are replaced in a fork of it")


def ended(command, out, err):
    """Run a command in a fork of this process with streams that are files' numbers, or closed; return its status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            for number, stream in ((1, out), (2, err)):
                os.dup2(stream, number) if stream is not None else os.close(number)
            sys.stdout = sys.stderr = None  # as Python sets them where they are closed
            enter(command)
        except SystemExit as stop:
            status = stop.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left():
    """Return the number of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full():
    return os.open("/dev/full", os.O_WRONLY)


def show_help():
    return describe.main(["--help"])


def fail():
    return report.main(["nowhere"])


@pytest.fixture
def file(tmp_path):
    """Return a file's number, and a function that reads it."""
    path = tmp_path / "said.txt"
    with path.open("wb") as opened:
        yield opened.fileno(), lambda: path.read_text(encoding="utf-8")


@pytest.mark.parametrize("stream", [lambda: None, left], ids=["closed", "left"])
def test_nobody_who_reads_is_no_fault(file, stream):
    number, said = file
    assert ended(show_help, stream(), number) == 0
    assert said() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is full")
def test_a_full_output_is_named(file):
    number, said = file
    assert ended(show_help, full(), number) == 2
    assert said().startswith("error: Expected standard output to take all that was printed")


@pytest.mark.parametrize("stream", [lambda: None, left, full], ids=["closed", "left", "full"])
def test_without_a_stream_for_errors_the_status_tells(file, stream):
    assert ended(fail, file[0], stream()) == 2
    assert ended(show_help, file[0], stream()) == 0
    assert file[1]().startswith("usage: ")


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        *((OSError(number, "x"), "disk") for number in (errno.ENOSPC, errno.EDQUOT)),
        (OSError(errno.EFBIG, "x"), "ulimit -f"),
        (OSError(errno.EROFS, "x"), "written to"),
        (OSError(errno.EMFILE, "x"), "open files"),
        (RuntimeError("can't start new thread"), "threads"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "memory"),
        (SystemError("<function _find_and_load> returned NULL without setting an exception"), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (MemoryError(), "memory"),
    ],
)
def test_what_runs_short_is_named_also_where_another_error_comes_of_it(file, error, lacking):
    def command():
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("a library gives up") from cause

    assert ended(command, file[0], file[0]) == 2
    assert lacking in file[1]()
    assert "Traceback" not in file[1]()


def test_other_errors_are_not_taken_for_a_shortage():
    assert short_of(ValueError("a memory of summer")) is None


def test_a_place_that_cannot_be_used_is_named(file, tmp_path):
    assert ended(lambda: (tmp_path / "no" / "x").write_text("x"), file[0], file[0]) == 2
    assert f"Expected to use {tmp_path / 'no' / 'x'}, but No such file or directory" in file[1]()


def test_an_import_that_fails_is_not_called_a_wrong_setting(tmp_path, monkeypatch):
    (tmp_path / "reads_the_environment.py").write_text("raise ValueError('Key backend: nonsense')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="Key backend") as caught:
        import reads_the_environment  # noqa: F401
    assert "reads_the_environment" in at_import(caught.value)
    assert "overrides" not in sentence_of(caught.value)


@pytest.mark.parametrize("sign", ["\x1b", "\r", "\x07", "\x9b", "\u202e", "\udce9", "\x7f", "\u2028"])
def test_signs_that_move_the_cursor_are_shown(sign):
    assert shown(f"a{sign}b\tc é ±\n") == f"a{ascii(sign)[1:-1]}b\tc é ±\n"


def test_ctrl_c_ends_a_command_before_it_has_a_plan(file):
    assert ended(lambda: signal.raise_signal(signal.SIGINT), file[0], file[0]) == 130
    assert file[1]() == ""


@pytest.mark.parametrize(
    ("variables", "engine", "heard"),
    [
        ({}, "workers", True),
        ({"SLURM_LOCALID": "1"}, "workers", True),  # a task of its own
        ({"SLURM_LOCALID": "1"}, "distributed", False),
        ({"TORCHELASTIC_RUN_ID": "a", "LOCAL_RANK": "1"}, "workers", False),
        ({"TORCHELASTIC_RUN_ID": "a", "LOCAL_RANK": "0"}, "distributed", True),
    ],
)
def test_what_all_ranks_find_is_said_once(monkeypatch, variables, engine, heard):
    for name in ("SLURM_LOCALID", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train.py", f"engine={engine}"])
    assert is_printed_here(ConfigError("x")) is heard
    assert is_printed_here(EngineError("x"))


TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2"}


ONE_PROCESS = sorted(set(re.findall(r"^  (\w+)  ", USAGE, re.MULTILINE)) - {"train"})


@pytest.mark.parametrize(
    ("name", "variables", "argument", "status", "said"),
    [
        pytest.param(name, *case, marks=pytest.mark.slow if number and name != ONE_PROCESS[0] else ())
        for name in ONE_PROCESS
        for number, case in enumerate([
            (TORCHRUN | {"LOCAL_RANK": "0"}, "seed=0", 2, "error: Expected one process for `{}`, but 2 were started together"),
            (TORCHRUN | {"LOCAL_RANK": "1"}, "seed=0", 2, ""),
            ({"SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, "engine=distributed", 2, ""),
            ({"SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, "seed=0", 0, "usage: "),  # a task of its own
            (TORCHRUN | {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "seed=0", 0, "usage: "),
        ])
    ],
)  # fmt: skip
def test_a_command_that_knows_no_ranks_runs_in_one_process(file, monkeypatch, name, variables, argument, status, said):
    for variable in ("SLURM_NTASKS", "SLURM_LOCALID", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["x.py", argument, "--help"])
    number, told = file
    for command in (name, partial(main, [name, argument, "--help"])):
        os.ftruncate(number, os.lseek(number, 0, os.SEEK_SET))
        assert ended(command, number, number) == status
        assert told().startswith(said.format(name))
        assert told().count("error") == said.count("error")
        assert bool(told()) == bool(said)


@pytest.mark.parametrize("stream", [lambda: None, lambda: open(left(), "w"), lambda: open(full(), "w")])  # noqa: SIM115
def test_a_script_of_a_users_prints_to_no_stream(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    with reader_may_leave(sys.stderr):
        print("x", file=sys.stderr)
    if sys.stderr is not None:
        sys.stderr.close()
    Progress(rounds=1)
