"""Ctrl-C and SIGTERM stop a run at the next safe point instead of anywhere."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

ECHO_SECONDS = 1.0
"""The same signal again within this time is the same wish: a scheduler tells the process group, and ``make`` passes it on."""


class Interruption:
    """While entered, hands the first SIGINT or SIGTERM to ``stop``; a second one acts as it always does.

    Args:
        stop: called with the signal's number, from within the handler: it may only take note of it.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._received: int | None = None
        self._at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        """Take over the signals."""
        self._previous = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._at = number, time.monotonic()
            self._stop(number)
            message = f"\n{signal.Signals(number).name}: stopping after the client in progress; once more to stop at once.\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # not print, which may just be at work and must not be entered twice
        elif number != self._received or time.monotonic() - self._at > ECHO_SECONDS:
            self.__exit__()
            signal.raise_signal(number)
