import signal

import pytest

from fedfacet import entry
from fedfacet.entry import Interruption


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request):
    return request.param


@pytest.fixture
def default_action():
    """What a signal would do without an ``Interruption``, noted instead of done."""
    received = []
    before = {number: signal.signal(number, lambda one, _: received.append(one)) for number in (signal.SIGINT, signal.SIGTERM)}
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


def test_without_a_signal_nothing_happens(default_action):
    stopped = []
    with Interruption(stopped.append):
        pass
    assert default_action == stopped == []


def test_a_signal_asks_for_an_end(number, default_action, capfd):
    stopped = []
    with Interruption(stopped.append):
        signal.raise_signal(number)
    assert stopped == [number]
    assert default_action == []
    assert f"{number.name}: stopping after the client in progress; once more" in capfd.readouterr().err


def test_the_same_signal_at_once_is_the_same_wish(number, default_action, capfd):
    stopped = []
    with Interruption(stopped.append):
        for _ in range(3):
            signal.raise_signal(number)
    assert stopped == [number]
    assert default_action == []
    assert capfd.readouterr().err.count("stopping") == 1


def test_the_same_signal_later_acts_as_it_always_does(number, default_action, monkeypatch):
    monkeypatch.setattr(entry, "ECHO_SECONDS", -1.0)
    with Interruption(print):
        signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert default_action == [number, number]


def test_another_signal_acts_as_it_always_does(number, default_action):
    other = signal.SIGTERM if number == signal.SIGINT else signal.SIGINT
    stopped = []
    with Interruption(stopped.append):
        signal.raise_signal(number)
        signal.raise_signal(other)
    assert stopped == [number]
    assert default_action == [other]


def test_the_signals_are_given_back(number, default_action):
    with Interruption(print):
        pass
    signal.raise_signal(number)
    with pytest.raises(KeyError), Interruption(print):
        raise KeyError
    signal.raise_signal(number)
    assert default_action == [number, number]


def test_the_message_may_fail(number, default_action, monkeypatch):
    """A terminal that is gone must not stop the run anywhere else."""

    def gone(*_):
        raise OSError

    monkeypatch.setattr(entry.os, "write", gone)
    stopped = []
    with Interruption(stopped.append):
        signal.raise_signal(number)
    assert stopped == [number]
