"""Locks of run folders: one process at a time, and none that outlives its process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from fedfacet.storage import lock as locks
from fedfacet.storage.lock import LOCK_FILE, UNKNOWN, holder_of, lock, sole


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
        "import os, pathlib, signal, fedfacet.storage.lock",
        f"with fedfacet.storage.lock.lock(pathlib.Path({str(cell)!r})): os.kill(os.getpid(), signal.SIGKILL)",
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
        "import os, pathlib, signal, fedfacet.storage.lock",
        f"with fedfacet.storage.lock.sole(pathlib.Path({str(file)!r})): os.kill(os.getpid(), signal.SIGKILL)",
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
    for silent, is_held in ((0, True), (590, True), (610, False)):
        at = time.time() - silent
        os.utime(cell / LOCK_FILE, (at, at))
        assert (holder_of(cell) is not None) == is_held
        with lock(cell) as holder:
            assert (holder is not None) == is_held
    assert list(cell.iterdir()) == []


def test_here_a_silent_process_that_lives_keeps_its_lock(cell):
    with lock(cell):
        os.utime(cell / LOCK_FILE, (0, 0))
        with lock(cell) as second:
            assert second.pid == os.getpid()


ELSEWHERE = """
import contextlib, json, os, pathlib, socket, sys, time, fedfacet.storage.lock as locks
socket.gethostname = lambda: sys.argv[2]
locks._alone = lambda file: contextlib.nullcontext()  # another machine's guard is none here
locks.TOUCH_SECONDS = 0.05
cell = pathlib.Path(sys.argv[1])
"""

HOLD = "with locks.lock(cell) as holder: print(holder, flush=True); sys.stdin.readline()"

TAKE_OVER = """
locks.TOUCH_SECONDS = 3600.0  # it would see, before it has let go, that the lock is the dead machine's, and give up
print("ready", flush=True)
sys.stdin.readline()
entered = 0
while entered < 20:
    with locks.lock(cell) as holder:
        if holder is None:
            entered += 1
            with open(cell.parent / "log", "a") as log:
                for word in ("in", "out"):
                    print(word, file=log, flush=True)
                    time.sleep(0.001)
            dead = cell.parent / sys.argv[2]  # this machine is gone with the lock in its hands
            dead.write_text(json.dumps({"host": "dead", "namespace": "", "pid": 1, "started": "1"}))
            os.utime(dead, (0, 0))
            os.replace(dead, cell / locks.LOCK_FILE)
"""


@pytest.fixture
def start_elsewhere(checkout, cell):
    """Return a function that starts Python code in a process that is on another machine, for all that a lock can tell."""
    started = []

    def begin(host, code):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        started.append(subprocess.Popen([sys.executable, "-c", ELSEWHERE + code, str(cell), host], env=environment, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_who_lives_elsewhere_renews_its_lock_and_who_was_silent_gives_up(start_elsewhere, cell, monkeypatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 2)
    other = start_elsewhere("elsewhere", HOLD)
    assert other.stdout.readline() == "None\n"
    began = time.monotonic()
    while time.monotonic() < began + 3:
        assert holder_of(cell).host == "elsewhere"
        time.sleep(0.1)
    other.send_signal(signal.SIGSTOP)  # its machine sleeps
    assert holder_of(cell).host == "elsewhere"
    time.sleep(2.5)
    with lock(cell) as holder:
        assert holder is None
        other.send_signal(signal.SIGCONT)
        assert other.wait(timeout=30) == 1
        assert holder_of(cell).pid == os.getpid()
    said = other.stderr.read()
    assert said.startswith(f"error: Expected {cell} to be left to process {other.pid} on elsewhere, ")
    assert f"but process {os.getpid()} on {socket.gethostname()} took it" in said


def test_a_lock_that_was_removed_by_mistake_is_made_anew(start_elsewhere, cell):
    other = start_elsewhere("elsewhere", HOLD)
    assert other.stdout.readline() == "None\n"
    (cell / LOCK_FILE).unlink()
    began = time.monotonic()
    while holder_of(cell) is None:
        assert time.monotonic() < began + 30
    other.stdin.write("done\n")
    other.stdin.flush()
    assert other.wait(timeout=30) == 0
    assert list(cell.iterdir()) == []


def test_a_silent_machines_lock_is_inherited_by_one_of_many_machines(start_elsewhere, cell):
    machines = [start_elsewhere(f"host{number}", TAKE_OVER) for number in range(3)]
    for machine in machines:
        assert machine.stdout.readline() == "ready\n"
    for machine in machines:
        machine.stdin.write("go\n")
        machine.stdin.flush()
    for machine in machines:
        _, said = machine.communicate(timeout=300)
        assert machine.returncode == 0, said
    assert (cell.parent / "log").read_text().split() == ["in", "out"] * 60


@pytest.mark.parametrize("died", ["here", "elsewhere"])
def test_who_dies_over_taking_a_lock_does_not_hold_it(cell, died):
    with lock(cell):
        own = json.loads((cell / LOCK_FILE).read_text())
    for name in (LOCK_FILE, f"{LOCK_FILE}.taking"):
        (cell / name).write_text(json.dumps(own | ({"started": "1"} if died == "here" else {"host": "another"})))
        os.utime(cell / name, (0, 0))
    with lock(cell) as holder:
        assert holder is None
    assert list(cell.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '"x"'])
def test_a_lock_that_cannot_be_read_is_somebodys(cell, content):
    (cell / LOCK_FILE).write_text(content)
    with lock(cell) as holder:
        assert holder == UNKNOWN
        assert str(holder) == "an unknown process"
    assert (cell / LOCK_FILE).read_text() == content


ENTER = """
import os, pathlib, sys, fedfacet.storage.lock
cell = pathlib.Path(sys.argv[1])
log = open(cell.parent / "log", "a")
print("ready", flush=True)
sys.stdin.readline()
entered = 0
while entered < 5:
    with fedfacet.storage.lock.lock(cell) as holder:
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
        process.communicate(timeout=300)
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
