"""What a run says while it goes on."""

import logging
import math
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedfacet.callbacks.base import Callback
from fedfacet.entry import reader_may_leave
from fedfacet.federation import Federation
from fedfacet.records import RoundResult

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

log = logging.getLogger(__name__)

_UNSAID = {"correction": "none", "objective": "classification", "personal": "none", "loss": "cross_entropy"}
_UNSAID |= {"participation": "always", "adapter": "none"}
"""Groups that are told of only where another option than this was chosen."""

_MOST_RECENT = 20
"""Rounds by which the time left is told."""


@dataclass(eq=False, kw_only=True)
class Progress(Callback):
    """A live bar on a terminal (rounds, clients, time left, worst-group accuracy); plain lines elsewhere, and in the log.

    A line before the first round says what is trained; it is left out where ``run_config`` has no ``choices``. Of a table, the
    next line says how each column was read.

    Args:
        rounds: of the run.
        seconds_between_lines: at most one line in this time without a terminal, besides the first and the last round's.
        run_config: the run's resolved configuration.
        trains_on: the device, as torch calls it.
        num_attributes: A; where it is 1, the groups are called classes.
        parameters: of the model, ``"trainable"`` and ``"total"``; left out of the line where it is ``None``.
        inputs_read: how each column of a table was read.
    """

    rounds: int
    seconds_between_lines: float = 5.0
    run_config: Mapping[str, Any] | None = None
    trains_on: str = "cpu"
    num_attributes: int = 2
    parameters: Mapping[str, int] | None = None
    inputs_read: str = ""

    def __post_init__(self) -> None:
        self._choices: Mapping[str, Any] = (self.run_config or {}).get("choices") or {}
        self._worst_name = "worst class" if self.num_attributes == 1 else "worst group"
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._worst = math.nan
        self._round_started = 0.0
        self._recent: list[float] = []
        self._first_round = 0
        self._last_line = -math.inf

    def on_fit_start(self, federation: Federation) -> None:
        """Say what is trained, and open the bar."""
        if self._choices:
            inputs = [f"inputs: {self.inputs_read}"] if self.inputs_read else []
            for line in [_what_is_trained(federation, self._choices, self.trains_on, self.parameters), *inputs]:
                log.info(line)
                # A terminal would break it within words.
                width = shutil.get_terminal_size().columns if _on_a_terminal() else len(line)
                with reader_may_leave(sys.stderr):
                    print(textwrap.fill(line, width, break_on_hyphens=False), file=sys.stderr)
        self._round_started = time.monotonic()
        self._first_round = federation.state.round
        if not _on_a_terminal():
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
            self._bar.update(self._task, text=f"{phase} {position}/{expected}{_percent(f' {self._worst_name}', self._worst)}")

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Move the bar, or print a line."""
        now = time.monotonic()
        self._recent = [*self._recent, now - self._round_started][-_MOST_RECENT:]
        self._round_started = now
        # Not the mean: some rounds ask all clients a question, or train all, and most do not. Of two rounds, the short one.
        left = statistics.median_low(self._recent) * (self.rounds - result.round)
        split = "test" if "test/acc_worst_group" in result.metrics else "holdout"
        average, worst = (result.metrics.get(f"{split}/{name}", math.nan) for name in ("acc", "acc_worst_group"))
        self._worst = self._worst if math.isnan(worst) else worst  # the bar shows the latest that was measured
        line = (
            f"round {result.round}/{self.rounds}  clients {len(result.arrived)}/{len(result.cohort)}"
            f"{_percent('  average', average)}{_percent(f'  {self._worst_name}', worst)}"
            f"  time left {_duration(left)}"
        )
        log.info(line)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=result.round)
            return
        edge = result.round in (self._first_round + 1, self.rounds) or federation.state.stopped
        if not edge and now - self._last_line < self.seconds_between_lines:
            return
        self._last_line = now
        with reader_may_leave(sys.stderr):
            print(line, file=sys.stderr)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()


def _on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # a daemon may have none


def _what_is_trained(
    federation: Federation, choices: Mapping[str, Any], trains_on: str, parameters: Mapping[str, int] | None
) -> str:
    """Return the chosen options and the size of the federation, by their names on the command line where they have some."""
    cohort = "" if choices["selector"] == "all" else f", {federation.cohort_size} a round"
    unusual = (group for group, usual in _UNSAID.items() if choices.get(group, usual) != usual)
    return "  ".join(
        [
            *(f"{group} {choices[group]}" for group in ("dataset", "partition")),
            f"clients {federation.num_clients}{cohort}",
            *(f"{group} {choices[group]}" for group in ("model", "selector", "aggregator", *unusual)),
            *([f"parameters {parameters['trainable']:,} trainable, {parameters['total']:,} total"] if parameters else []),
            f"seed {federation.seed}",
            f"engine {choices['engine']} on {trains_on}",
        ]
    )


def _percent(label: str, value: float) -> str:
    return "" if math.isnan(value) else f"{label} {100 * value:.1f} %"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
