import signal

import pytest

from fedfacet.errors import Interrupted
from fedfacet.runs import interruption
from fedfacet.runs.interruption import Interruption


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
    with Interruption() as stop:
        stop.poll()
    assert default_action == []


def test_a_signal_is_remembered_until_the_next_poll(number, default_action, capfd):
    with Interruption() as stop:
        signal.raise_signal(number)
        with pytest.raises(Interrupted) as raised:
            stop.poll()
    assert raised.value.signal == number
    assert default_action == []
    assert f"{number.name}: stopping after the client in progress; once more" in capfd.readouterr().err


def test_the_same_signal_at_once_is_the_same_wish(number, default_action, capfd):
    with Interruption() as stop:
        for _ in range(3):
            signal.raise_signal(number)
        with pytest.raises(Interrupted):
            stop.poll()
    assert default_action == []
    assert capfd.readouterr().err.count("stopping") == 1


def test_the_same_signal_later_acts_as_it_always_does(number, default_action, monkeypatch):
    monkeypatch.setattr(interruption, "ECHO_SECONDS", -1.0)
    with Interruption():
        signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert default_action == [number, number]


def test_another_signal_acts_as_it_always_does(number, default_action):
    other = signal.SIGTERM if number == signal.SIGINT else signal.SIGINT
    with Interruption() as stop:
        signal.raise_signal(number)
        signal.raise_signal(other)
        with pytest.raises(Interrupted) as raised:
            stop.poll()
    assert raised.value.signal == number
    assert default_action == [other]


def test_the_signals_are_given_back(number, default_action):
    with Interruption():
        pass
    signal.raise_signal(number)
    with pytest.raises(KeyError), Interruption():
        raise KeyError
    signal.raise_signal(number)
    assert default_action == [number, number]


def test_the_message_may_fail(number, default_action, monkeypatch):
    """A terminal that is gone must not stop the run anywhere else than at the next poll."""

    def gone(*_):
        raise OSError

    monkeypatch.setattr(interruption.os, "write", gone)
    with Interruption() as stop:
        signal.raise_signal(number)
        with pytest.raises(Interrupted):
            stop.poll()
