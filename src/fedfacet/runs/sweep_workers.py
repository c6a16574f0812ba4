"""The cells of a sweep in several processes, each of which goes through the whole queue and leaves the others' cells alone."""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedfacet.cores import check_processes, num_cores
from fedfacet.entry import leave
from fedfacet.errors import ConfigError
from fedfacet.terminal import fitted

if TYPE_CHECKING:
    from rich.live import Live

Outcome = tuple[dict[Path, int], dict[Path, str]]
"""What a worker went through, run folder -> how many rounds, and what failed there, run folder -> why."""

_LAST_BYTE = b"\0"
_PASSING = re.compile(r"(dataset|round) ")
"""How a line begins that is of interest until the next one comes."""


def num_workers(asked: Any, num_cells: int) -> int:
    """Return how many workers ``sweep.workers`` asks for; ``auto`` is one per core.

    Raises:
        ConfigError: if it is smaller than 1, or far larger than the number of cores.
    """
    if asked != "auto" and asked < 1:
        raise ConfigError(f"Expected `sweep.workers` to be auto, 1 or larger, but got {asked}: fix the value.")
    if asked != "auto":
        check_processes("sweep.workers", asked)
    return min(num_cores() if asked == "auto" else asked, num_cells)


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


@dataclass(slots=True)
class _Worker:
    number: int
    process: BaseProcess
    messages: Connection
    begun_line: bytes = b""
    has_begun: bool = False

    def hear(self, chunk: bytes, screen: Screen) -> None:
        """Show the lines that are whole; an empty chunk says that there are no more."""
        written = self.begun_line + chunk
        *lines, self.begun_line = (written if chunk or not written else written + b"\n").split(b"\n")
        for line in lines:
            screen.say(self.number, line.decode(_encoding(), errors="replace"))


def run_workers(work: Callable[[], Outcome], number: int) -> Outcome:
    """Have ``number`` processes do the same work; print what each says behind its number, and return what came out.

    A signal is passed on to all. A worker that is killed is named, and the others run on; where this process is killed, its
    workers notice.

    Args:
        work: to be called in each process; it can be pickled, because processes are spawned.
        number: of workers, 2 or larger.

    Raises:
        SystemExit: after a signal, with 128 plus its number as the status.
    """
    workers: list[_Worker] = []
    received: list[int] = []

    def pass_on(signal_number: int, _: object) -> None:
        received.append(signal_number)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                if os.name != "nt":  # there Ctrl-C reaches them too, and a signal from here would end them at once
                    os.kill(worker.process.pid or 0, signal_number if worker.has_begun else signal.SIGTERM)

    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, or Ctrl-C would interrupt a worker's imports
        stack.callback(signal.signal, signal.SIGINT, usual)
        for worker_number in range(1, number + 1):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, number, sender, _encoding()))
            process.start()
            sender.close()
            workers.append(_Worker(worker_number, process, receiver))
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, signal_number, signal.signal(signal_number, pass_on))
        reached, failed = _listen(workers, stack.enter_context(Screen()))
        for worker in workers:
            worker.process.join()
    for worker in workers:
        if (status := worker.process.exitcode or 0) < 0 and not received:
            print(f"worker {worker.number} was killed by {signal.Signals(-status).name}", file=sys.stderr, flush=True)
    if received:
        sys.exit(128 + received[0])
    return reached, failed


def _run(work: Callable[[], Outcome], of: int, sender: Connection, encoding: str) -> None:
    """Do the work with a share of the threads; what this process says goes where its outcome goes, a way that all systems have.

    A last byte tells where it ends, not the end of the pipe: multiprocessing's tracker holds that too, and ends later.
    """
    signal.signal(signal.SIGINT, leave)
    sender.send(b"")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    output, written = os.pipe()
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    # Windows' own streams would go on writing to its console.
    sys.stdout = open(1, "w", buffering=1, encoding=encoding, errors="replace", newline="\n", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=encoding, errors="replace", newline="\n", closefd=False)  # noqa: SIM115
    is_over = threading.Event()
    reader = threading.Thread(target=_send_on, args=(output, sender, is_over), daemon=True)
    reader.start()
    try:
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // of))
        outcome = work()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        is_over.set()
        os.write(1, _LAST_BYTE)
        reader.join()
    sender.send(outcome)


def _send_on(output: int, sender: Connection, is_over: threading.Event) -> None:
    """Send on what this process says, until the last byte."""
    while chunk := os.read(output, 1 << 16):
        ends = is_over.is_set() and chunk.endswith(_LAST_BYTE)
        sender.send(chunk[:-1] if ends else chunk)
        if ends:
            return


def _end_with_parent() -> None:
    """End this process once the one that started it is gone."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)


def _listen(workers: Sequence[_Worker], screen: Screen) -> Outcome:
    """Show what the workers say, line by line, until all are silent."""
    reached: dict[Path, int] = {}
    failed: dict[Path, str] = {}
    talking: dict[Any, _Worker] = {worker.messages: worker for worker in workers}
    while talking:
        for end in wait(list(talking)):
            worker = talking[end]
            try:
                message = worker.messages.recv()
            except (EOFError, OSError):  # it is over, or was stopped or killed
                del talking[end]
                worker.messages.close()
                worker.hear(b"", screen)
                continue
            worker.has_begun = True
            if isinstance(message, bytes):
                worker.hear(message, screen)
            else:
                reached |= message[0]
                failed |= message[1]
    return reached, failed


def _encoding() -> str:
    """Return how text is written to where this process prints; a table's rules are drawn in what that can show."""
    return sys.stdout.encoding or "utf-8"
