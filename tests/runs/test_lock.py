"""Locks of run folders: one process at a time, and none that outlives its process."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from fedfacet.runs import lock as locks
from fedfacet.runs.lock import LOCK_FILE, UNKNOWN, holder_of, lock, sole


@pytest.fixture
def cell(tmp_path):
    folder = tmp_path / "cells" / "0123"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def start(checkout):
    """Return a function that starts Python code in a process of its own."""
    return lambda *code: subprocess.Popen(
        [sys.executable, "-c", "\n".join(code)], env={**os.environ, "PYTHONPATH": str(checkout / "src")}
    )


def leave_behind(start, cell):
    """Have a process take the lock and be killed over its work."""
    killed = start(
        "import os, pathlib, signal, fedfacet.runs.lock",
        f"with fedfacet.runs.lock.lock(pathlib.Path({str(cell)!r})): os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert killed.wait() == -signal.SIGKILL
    assert (cell / LOCK_FILE).exists()


def test_one_at_a_time_and_nothing_is_left(cell):
    with lock(cell) as holder:
        assert holder is None
        with lock(cell) as second:
            assert (second.pid, second.host) == (os.getpid(), socket.gethostname())
            assert str(second) == f"process {os.getpid()} on {socket.gethostname()}"
        assert holder_of(cell) == second, "who did not get it does not take it away"
    assert holder_of(cell) is None
    assert list(cell.iterdir()) == []
    with lock(cell) as holder:
        assert holder is None


def test_it_is_given_back_when_the_work_fails(cell):
    with pytest.raises(ZeroDivisionError), lock(cell):
        raise ZeroDivisionError
    assert holder_of(cell) is None


def test_the_lock_of_a_dead_process_counts_for_nothing(start, cell):
    leave_behind(start, cell)
    assert holder_of(cell) is None
    with lock(cell) as holder:
        assert holder is None
        assert holder_of(cell).pid == os.getpid()


def test_a_new_process_with_the_number_of_the_dead_one_is_another(cell):
    with lock(cell):
        own = json.loads((cell / LOCK_FILE).read_text())
    (cell / LOCK_FILE).write_text(json.dumps(own | {"started": "1"}))
    with lock(cell) as holder:
        assert holder is None


def test_a_process_that_is_dead_but_not_buried_counts_for_nothing(cell):
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is over, and still has a number
    with lock(cell):
        own = json.loads((cell / LOCK_FILE).read_text())
    (cell / LOCK_FILE).write_text(json.dumps(own | {"pid": process.pid}))
    assert holder_of(cell) is None
    process.wait()


def test_where_the_system_has_no_list_of_processes_their_numbers_tell(start, cell, monkeypatch):
    monkeypatch.setattr(locks, "PROCESSES", cell / "none")
    with lock(cell), lock(cell) as second:
        assert second.pid == os.getpid()
    over = subprocess.Popen(["true"])
    over.wait()
    with lock(cell):
        own = json.loads((cell / LOCK_FILE).read_text())
    (cell / LOCK_FILE).write_text(json.dumps(own | {"pid": over.pid}))
    assert holder_of(cell) is None


def test_a_file_is_held_by_one_and_given_back_by_the_dead(start, tmp_path):
    file = tmp_path / "log"
    with sole(file) as first, sole(file) as second:
        assert (first, second) == (True, False)
    killed = start(
        "import os, pathlib, signal, fedfacet.runs.lock",
        f"with fedfacet.runs.lock.sole(pathlib.Path({str(file)!r})): os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert killed.wait() == -signal.SIGKILL
    with sole(file) as alone:
        assert alone
    assert file.read_text() == ""


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"namespace": "pid:[1]"}])
def test_of_another_machine_nobody_knows_whether_it_lives(cell, elsewhere):
    with lock(cell):
        own = json.loads((cell / LOCK_FILE).read_text())
    (cell / LOCK_FILE).write_text(json.dumps(own | {"pid": 2**22 + 1} | elsewhere))
    with lock(cell) as holder:
        assert holder.pid == 2**22 + 1
    assert (cell / LOCK_FILE).exists()
    (cell / LOCK_FILE).unlink()  # by hand
    with lock(cell) as holder:
        assert holder is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '"x"'])
def test_a_lock_that_cannot_be_read_is_somebodys(cell, content):
    (cell / LOCK_FILE).write_text(content)
    with lock(cell) as holder:
        assert holder == UNKNOWN
        assert str(holder) == "an unknown process"
    assert (cell / LOCK_FILE).read_text() == content


ENTER = """
import os, pathlib, sys, fedfacet.runs.lock
cell = pathlib.Path(sys.argv[1])
log = open(cell.parent / "log", "a")
print("ready", flush=True)
sys.stdin.readline()
entered = 0
while entered < 5:
    with fedfacet.runs.lock.lock(cell) as holder:
        if holder is None:
            entered += 1
            for word in ("in", "out"):
                print(word, file=log, flush=True)
                os.sched_yield()
"""


def test_a_stale_lock_is_inherited_by_one_of_many(start, cell, checkout):
    """However many find it at the same time: nobody enters before the one inside has left."""
    leave_behind(start, cell)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    processes = [subprocess.Popen([sys.executable, "-c", ENTER, str(cell)], env=environment, **pipes) for _ in range(5)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert (cell.parent / "log").read_text().split() == ["in", "out"] * 25


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"host": 3}', "\0" * 100])
def test_a_lock_that_nobody_finished_writing_does_not_hold_for_ever(cell, content):
    file = cell / LOCK_FILE
    file.write_text(content)
    with lock(cell) as holder:
        assert holder == UNKNOWN
    os.utime(file, (0, 0))
    assert holder_of(cell) is None
    with lock(cell) as holder:
        assert holder is None
    assert not file.exists()


def test_links_are_nobodys_lock_and_pipes_are_not_waited_for(cell, tmp_path):
    (cell / LOCK_FILE).symlink_to(tmp_path / "nowhere")
    assert holder_of(cell) is None
    with lock(cell) as holder:
        assert holder is None
    assert not (tmp_path / "nowhere").exists()
    os.mkfifo(cell / LOCK_FILE)
    with lock(cell) as holder:
        assert holder == UNKNOWN


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parents[1] / "new")], ids=["pipe", "link"])
def test_the_guard_beside_a_cell_is_a_file(cell, make):
    make(cell.parent / f".{LOCK_FILE}")
    with pytest.raises(OSError, match="lock"), lock(cell):
        pass
    assert not (cell.parents[1] / "new").exists()
