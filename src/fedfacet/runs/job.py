"""One job of a command line, and how long those that follow will take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from fedfacet.config import is_cell

failures: dict[Path, str] = {}
"""Of the jobs that failed in this process while others went on: the run folder, and what was wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is to be run, and where.

    Attributes:
        config: finalised; ``resume`` names the run folder where the run is to go on.
        run_dir: the run folder.
        overrides: from which a resume composes the configuration again.
    """

    config: DictConfig
    run_dir: Path
    overrides: Sequence[str]

    @property
    def is_new_cell(self) -> bool:
        """Whether this is a cell of a sweep, and not one that ``resume`` names."""
        return is_cell(self.config) and self.config.resume is None

    @property
    def was_saved(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any((self.run_dir / "checkpoints").glob("*.ckpt"))

    def __str__(self) -> str:
        """Return what was asked for, for a user."""
        return " ".join(override for override in self.overrides if not override.startswith("sweep="))


class ETA:
    """Counts the cells that one process goes through.

    Args:
        total: cells of the sweep; ``None`` where nobody knows.
        workers: processes that go through all of them, each leaving the others' alone.
        now: tells seconds.

    Attributes:
        total: as given.

    Example:
        >>> seconds = iter([0.0, 60.0])
        >>> eta = ETA(5, workers=2, now=lambda: next(seconds))
        >>> eta.begins(0)
        '1 of 5'
        >>> eta.ended()
        >>> eta.begins(2)
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
        position = f"{number + 1} of {self.total}"
        if not self._done:
            return position
        seconds = (now - self._since) / self._done * (self.total - number) / self._workers
        return f"{position}, about {max(1, round(seconds / 60))} min left"

    def ended(self) -> None:
        """Note that a cell was run."""
        self._done += 1
