import pytest

from fedfacet.callbacks.base import Callback


class _Stop(Callback):
    def __init__(self, after):
        self.after = after

    def on_fit_start(self, federation):
        if federation.state.round == self.after:
            self.after = None  # once
            federation.stop(2)

    def on_state_complete(self, federation):
        self.on_fit_start(federation)


class _Fail(Callback):
    def __init__(self, round):
        self.round = round

    def on_client_end(self, round, position, expected, phase):
        if round == self.round:
            raise RuntimeError("broken")


@pytest.fixture
def stop():
    """Return a function that has a federation stopped, as by Ctrl-C, once it has done ``after`` rounds."""

    def make(federation, *, after):
        federation.callbacks["stop"] = _Stop(after)

    return make


@pytest.fixture
def fail():
    """Return a function that has a federation fail in the midst of a round."""

    def make(federation, *, round):
        federation.callbacks["fail"] = _Fail(round)

    return make
