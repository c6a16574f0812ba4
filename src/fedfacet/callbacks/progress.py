"""What a run says while it goes on."""

import logging
import math
import sys
import time
from typing import TYPE_CHECKING

from fedfacet.callbacks.base import Callback
from fedfacet.types import RoundResult

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from fedfacet.federation import Federation

log = logging.getLogger(__name__)


class Progress(Callback):
    """A live bar on a terminal (rounds, clients, time left, worst-group accuracy); plain lines elsewhere, and in the log.

    Args:
        rounds: of the run.
        seconds_between_lines: without a terminal, at most one line in this time, besides the first and the last round's.
    """

    def __init__(self, *, rounds: int, seconds_between_lines: float = 5.0) -> None:
        self.rounds = rounds
        self.seconds_between_lines = seconds_between_lines
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._worst = math.nan
        self._started = 0.0
        self._first_round = 0
        self._last_line = -math.inf

    def on_fit_start(self, federation: "Federation") -> None:
        """Open the bar."""
        self._started = time.monotonic()
        self._first_round = federation.state.round
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=self.rounds, completed=self._first_round, text="")

    def on_client_end(self, round: int, position: int, expected: int, phase: str) -> None:
        """Show which client is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, text=f"{phase} {position}/{expected}{_percent(' worst group', self._worst)}")

    def on_round_end(self, federation: "Federation", result: RoundResult) -> None:
        """Move the bar, or print a line."""
        now = time.monotonic()
        left = (now - self._started) / (result.round - self._first_round) * (self.rounds - result.round)
        worst = result.metrics.get("test/acc_worst_group", math.nan)
        self._worst = self._worst if math.isnan(worst) else worst  # the bar shows the latest that was measured
        line = (
            f"round {result.round}/{self.rounds}  clients {len(result.arrived)}/{len(result.cohort)}"
            f"{_percent('  average', result.metrics.get('test/acc', math.nan))}{_percent('  worst group', worst)}"
            f"  time left {_duration(left)}"
        )
        log.info(line)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=result.round)
            return
        edge = result.round in (self._first_round + 1, self.rounds)
        if not edge and now - self._last_line < self.seconds_between_lines:
            return
        self._last_line = now
        print(line, file=sys.stderr, flush=True)

    def on_fit_end(self, federation: "Federation", status: str) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()


def _percent(label: str, value: float) -> str:
    return "" if math.isnan(value) else f"{label} {100 * value:.1f} %"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
