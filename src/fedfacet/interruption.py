"""Ctrl-C and SIGTERM stop a run at the next safe point instead of anywhere."""

import signal
import sys
from types import FrameType
from typing import Any

from fedfacet.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, remembers the first SIGINT or SIGTERM; ``poll`` then raises ``Interrupted``.

    A second signal acts as it always does, so that a run can still be stopped at once.
    """

    def __init__(self) -> None:
        self._received: int | None = None
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
        self._received = number
        self.__exit__()
        name = signal.Signals(number).name
        print(f"\n{name}: stopping after the client in progress; once more to stop at once.", file=sys.stderr, flush=True)
