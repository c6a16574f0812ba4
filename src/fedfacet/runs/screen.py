"""What several processes say, in one window."""

import re
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedfacet.analysis.terminal import fitted

if TYPE_CHECKING:
    from rich.live import Live

_PASSING = re.compile(r"(dataset|round) ")
"""How a line begins that is of interest until the next one comes."""


class Screen:
    """Prints each line behind the number of the process that says it, once it is opened as a context.

    On a terminal, how far a process has come stands in one line that changes, below all that stays.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._latest: dict[int, str] = {}

    def __enter__(self) -> "Screen":
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(highlight=False, markup=False, soft_wrap=True)
            self._live = Live(console=console, transient=True, get_renderable=self._lines, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, number: int, line: str) -> None:
        """Print what process ``number`` says."""
        if self._live is None:
            print(f"[{number}] {line}", flush=True)
        elif _PASSING.match(line):
            self._latest[number] = line
        else:
            if self._latest.pop(number, None):  # its cell ends
                self._live.refresh()
            self._live.console.print(fitted(f"[{number}] {line}"))

    def _lines(self) -> Any:
        from rich.text import Text

        lines = (f"[{number}] {line}" for number, line in sorted(self._latest.items()))
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
