import io
import math
import re
import sys
import time
from dataclasses import replace

import pytest

from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.progress import Progress


class Score(Callback):
    def measure(self, federation, round):
        return {"test/acc": 0.5 + round / 100, "test/acc_worst_group": 0.25}


class ScoreOfRound1(Callback):
    def measure(self, federation, round):
        return {"test/acc_worst_group": 0.25 if round == 1 else math.nan}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def run(tiny_federation, capsys):
    """Return a function that runs a federation and returns what it said on standard error."""

    def run(rounds, *, done=0, score=True, **settings):
        callbacks = {"score": Score()} if score else {}
        federation = tiny_federation(rounds=rounds, callbacks=callbacks | {"progress": Progress(rounds=rounds, **settings)})
        federation.restore(replace(federation.state, round=done))
        federation.fit()
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return run


def test_plain_lines(run):
    lines = run(3, seconds_between_lines=0.0).splitlines()
    for round, line in enumerate(lines, 1):
        assert re.fullmatch(
            rf"round {round}/3  clients 2/2  average 5{round}\.0 %  worst group 25\.0 %  time left 0:0\d", line
        ), line
    assert len(lines) == 3


def test_one_long_round_is_no_measure_of_the_others(run, monkeypatch):
    """The first or the second round asks all clients; the time left is by one as short as the others."""

    def measure(self, federation, round):
        time.sleep(0.5 if round == 2 else 0.0)
        return {}

    monkeypatch.setattr(Score, "measure", measure)
    minutes, seconds = run(100, seconds_between_lines=0.0).splitlines()[1].split()[-1].split(":")
    assert 60 * int(minutes) + int(seconds) < 20  # half the long round times 98 would be 24


def test_groups_without_attributes_are_classes(run):
    assert "average 51.0 %  worst class 25.0 %" in run(1, num_attributes=1)


def test_between_the_first_and_the_last_line_time_must_pass(run):
    lines = run(6, seconds_between_lines=3600.0).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 1/6", "round 6/6"]


def test_a_resumed_run_counts_on(run):
    lines = run(6, done=3, seconds_between_lines=3600.0).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 4/6", "round 6/6"]


def test_what_was_not_measured_is_not_said(run):
    line = run(1, score=False).strip()
    assert re.fullmatch(r"round 1/1  clients 2/2  time left 0:00", line)


def test_a_terminal_gets_a_bar(tiny_federation, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress(rounds=3)
    tiny_federation(rounds=3, callbacks={"score": Score(), "progress": progress}).fit()
    shown = sys.stderr.getvalue()
    assert "\x1b[" in shown
    assert "3/3" in shown
    assert not progress._bar.live.is_started  # the terminal is given back
    assert "time left" not in shown


def test_the_bar_keeps_the_latest_accuracy(tiny_federation, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    progress = Progress(rounds=3)
    tiny_federation(rounds=3, callbacks={"score": ScoreOfRound1(), "progress": progress}).fit()
    assert progress._bar.tasks[0].fields["text"] == "train 2/2 worst group 25.0 %"


def test_a_line_is_about_its_own_round(tiny_federation, capsys):
    callbacks = {"score": ScoreOfRound1(), "progress": Progress(rounds=3, seconds_between_lines=0.0)}
    tiny_federation(rounds=3, callbacks=callbacks).fit()
    assert ["worst group" in line for line in capsys.readouterr().err.splitlines()] == [True, False, False]


CHOICES = {
    "dataset": "digits", "partition": "gsc", "model": "resnet8", "selector": "uniform", "aggregator": "fedavgm",
    "correction": "none", "objective": "classification", "personal": "none", "loss": "cross_entropy", "participation": "always",
    "engine": "auto", "method": None,
}  # fmt: skip
USUAL = (
    "dataset digits  partition gsc  clients {}  model resnet8  selector uniform  aggregator fedavgm{}  seed 0  "
    "engine auto on {}"
)


@pytest.mark.parametrize(
    ("changes", "device", "line"),
    [
        ({}, "cpu", USUAL.format("4, 2 a round", "", "cpu")),
        ({"selector": "all"}, "cpu", USUAL.format("4", "", "cpu").replace("uniform", "all")),
        (
            {"personal": "head", "correction": "proximal", "loss": "margin"},
            "cuda:1",
            USUAL.format("4, 2 a round", "  correction proximal  personal head  loss margin", "cuda:1"),
        ),
    ],
)
def test_a_line_says_what_is_trained(run, changes, device, line, caplog):
    caplog.set_level("INFO")
    lines = run(2, run_config={"choices": CHOICES | changes}, trains_on=device).splitlines()
    assert lines[0] == caplog.messages[0] == line
    assert [line.split("  ")[0] for line in lines[1:]] == ["round 1/2", "round 2/2"]


def test_the_line_has_the_number_of_parameters(run):
    line = run(1, run_config={"choices": CHOICES}, parameters={"trainable": 1200, "total": 34567}).splitlines()[0]
    assert "  parameters 1,200 trainable, 34,567 total  seed" in line


def test_on_a_narrow_terminal_that_line_breaks_between_words(tiny_federation, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    tiny_federation(rounds=1, callbacks={"progress": Progress(rounds=1, run_config={"choices": CHOICES})}).fit()
    said = sys.stderr.getvalue().partition("\x1b")[0].splitlines()
    assert max(map(len, said)) <= 40
    assert " ".join(said).split() == USUAL.format("4, 2 a round", "", "cpu").split()
