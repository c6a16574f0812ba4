"""What a terminal and a pipe show; a terminal is a real one here."""

import contextlib
import io
import os
import pty
import sys

import pytest

from fedfacet.runs.sweep_workers import Screen
from fedfacet.waiting import waiting


@contextlib.contextmanager
def terminal(monkeypatch):
    """Yield a function that tells what has been written to the terminal that stdout and stderr are."""
    outside, inside = pty.openpty()
    with open(inside, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setenv("COLUMNS", "30")
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)

        def shown():
            stream.write("\0")
            stream.flush()
            said = b""
            while not said.endswith(b"\0"):
                said += os.read(outside, 1 << 16)
            return said.rstrip(b"\0").decode()

        yield shown
    os.close(outside)


def test_on_a_terminal_each_process_has_one_line_that_changes(monkeypatch):
    with terminal(monkeypatch) as shown, Screen() as screen:
        screen.say(1, "a begins")
        for round in (1, 2):
            screen.say(1, f"round {round}/2  worst group 0.0 % [bold]")
            screen.say(2, f"round {round}/9  worst group 0.0 %")
            screen._live.refresh()
        passing = shown()
        screen.say(1, "a is finished")
        screen._live.refresh()
        after = shown()
    assert passing.count("[1] a begins\r\n") == 1
    assert "[1] round 2/2  worst group 0.…" in passing, "a line that would wrap cannot be taken back"
    assert "round 1/2" not in passing.rpartition("[1] round 2/2")[2], "only the latest stays"
    assert "[1] a is finished\r\n" in after
    assert "[1] round" not in after.rpartition("[1] a is finished")[2], "a finished cell leaves no round behind"
    assert "[2] round 2/9" in after.rpartition("[1] a is finished")[2]


def test_a_line_that_stays_is_folded_between_words(monkeypatch):
    with terminal(monkeypatch) as shown, Screen() as screen:
        screen.say(1, "a/cell/whose/name/does/not/fit/at/all is finished, average 48.09 %, worst 34.93 %")
        after = shown()
    for line in ("[1]", "a/cell/whose/name/does/not/fit/at/all", "is finished, average 48.09 %,", "worst 34.93 %"):
        assert f"{line}\r\n" in after


def test_elsewhere_all_lines_are_printed(capsys):
    with Screen() as screen:
        screen.say(2, "round 1/2")
        screen.say(1, "a is finished")
    assert capsys.readouterr().out == "[2] round 1/2\n[1] a is finished\n"


def test_a_terminal_says_at_once_what_goes_on_and_takes_it_back(monkeypatch):
    with terminal(monkeypatch) as shown:
        with waiting("loads a great many libraries and data"):
            said = shown()
        taken_back = shown()
    assert said == "\rloads a great many libraries \r"
    assert taken_back == "\r" + " " * 29 + "\r"


def test_an_error_finds_a_clean_line(monkeypatch):
    with terminal(monkeypatch) as shown:
        with pytest.raises(ValueError, match="wrong"), waiting("loads"):
            raise ValueError("wrong")
        said = shown()
    assert said == "\rloads ...\r\r         \r"


def test_a_pipe_hears_nothing_of_waiting(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with waiting("loads"):
        pass
    assert pipe.getvalue() == ""
