"""Ctrl-C and SIGTERM stop a run at the next safe point instead of anywhere."""

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any

from fedfacet.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

ECHO_SECONDS = 1.0
"""The same signal again within this time is the same wish: a scheduler tells the process group, and ``make`` passes it on."""


class Interruption:
    """While entered, remembers the first SIGINT or SIGTERM; ``poll`` then raises ``Interrupted``.

    A second signal acts as it always does, so that a run can still be stopped at once.
    """

    def __init__(self) -> None:
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

    def poll(self) -> None:
        """Raise ``Interrupted`` if a signal has come."""
        if self._received is not None:
            raise Interrupted(self._received)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._at = number, time.monotonic()
            message = f"\n{signal.Signals(number).name}: stopping after the client in progress; once more to stop at once.\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # not print, which may just be at work and must not be entered twice
        elif number != self._received or time.monotonic() - self._at > ECHO_SECONDS:
            self.__exit__()
            signal.raise_signal(number)
