"""How far a sweep has come, and how long what is left will take."""

import time
from collections.abc import Callable


class Pace:
    """Counts the cells that one process goes through.

    Args:
        total: cells of the sweep; ``None`` where nobody knows.
        workers: processes that go through all of them, each leaving the others' alone.
        now: tells seconds.

    Attributes:
        total: as given.

    Example:
        >>> seconds = iter([0.0, 60.0])
        >>> pace = Pace(5, workers=2, now=lambda: next(seconds))
        >>> pace.begins(0)
        '1 of 5'
        >>> pace.ended()
        >>> pace.begins(2)
        '3 of 5, about 2 min left'
    """

    def __init__(self, total: int | None, *, workers: int = 1, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._workers = workers
        self._now = now
        self._since: float | None = None
        self._done = 0

    def begins(self, number: int) -> str:
        """Return which cell begins, counted from 1, and how long it and those after it will take, once one was seen."""
        now = self._now()
        self._since = now if self._since is None else self._since
        if self.total is None:
            return f"{number + 1}"
        said = f"{number + 1} of {self.total}"
        if not self._done:
            return said
        seconds = (now - self._since) / self._done * (self.total - number) / self._workers
        return f"{said}, about {max(1, round(seconds / 60))} min left"

    def ended(self) -> None:
        """Note that a cell was run."""
        self._done += 1
