"""The cells of a sweep in several processes, each of which goes through the whole queue and leaves the others' cells alone."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from fedfacet.cores import check_processes, num_cores
from fedfacet.entry import leave
from fedfacet.errors import ConfigError
from fedfacet.runs.screen import Screen

Outcome = tuple[dict[Path, int], dict[Path, str]]
"""What a worker went through, run folder -> how many rounds, and what failed there, run folder -> why."""

_PR_SET_PDEATHSIG = 1
_LAST_BYTE = b"\0"


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


@dataclass(slots=True)
class _Worker:
    number: int
    process: BaseProcess
    output: int | None  # what a fork says comes out here; a process that was spawned says it through the other one too
    outcome: Connection
    begun_line: bytes = b""

    def hear(self, chunk: bytes, screen: Screen) -> None:
        """Show the lines that are whole; an empty chunk says that there are no more."""
        said = self.begun_line + chunk
        *lines, self.begun_line = (said if chunk or not said else said + b"\n").split(b"\n")
        for line in lines:
            screen.say(self.number, line.decode(_encoding(), errors="replace"))


def start_method() -> Literal["fork", "spawn"]:
    """Return how processes are started: as forks, where the system has them and its libraries may be used in them."""
    return "fork" if sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods() else "spawn"


def run_workers(work: Callable[[], Outcome], number: int) -> Outcome:
    """Have ``number`` processes do the same work; print what each says behind its number, and return what came out.

    On Linux they are forks of this process. Elsewhere they are started anew: Windows has no forks, and those of macOS may not
    use the system's libraries. A signal is passed on to all. A worker that is killed is named, and the others go on; where this
    process is killed, Linux kills its workers too, and elsewhere they notice.

    Args:
        work: to be called before torch is loaded, whose threads a fork would lack; it can be pickled.
        number: of workers, 2 or larger.

    Raises:
        SystemExit: after a signal, with 128 plus its number as the status.
    """
    forks = start_method() == "fork"
    workers: list[_Worker] = []
    received: list[int] = []

    def pass_on(signal_number: int, _: object) -> None:
        received.append(signal_number)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                if os.name != "nt":  # there Ctrl-C reaches them too, and a signal from here would end them at once
                    os.kill(worker.process.pid or 0, signal_number)

    with contextlib.ExitStack() as stack:
        for worker_number in range(1, number + 1):
            workers.append(_forked(work, worker_number, number, workers) if forks else _spawned(work, worker_number, number))
            if (output := workers[-1].output) is not None:
                stack.callback(os.close, output)
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


def _forked(work: Callable[[], Outcome], number: int, of: int, others: Sequence[_Worker]) -> _Worker:
    context = multiprocessing.get_context("fork")
    output, said = os.pipe()
    receiver, sender = context.Pipe(duplex=False)
    sys.stdout.flush()
    inherited = [output, *(worker.output for worker in others if worker.output is not None)]
    process = context.Process(target=_run_fork, args=(work, of, said, sender, inherited))
    process.start()
    os.close(said)
    sender.close()
    return _Worker(number, process, output, receiver)


def _run_fork(work: Callable[[], Outcome], of: int, said: int, sender: Connection, inherited: Sequence[int]) -> None:
    """Do the work in a fork."""
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in inherited:  # or nobody would notice that their reader is gone
        os.close(descriptor)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sender.send(_done(work, of))


def _spawned(work: Callable[[], Outcome], number: int, of: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_spawned, args=(work, of, sender, _encoding()))
    process.start()
    sender.close()
    return _Worker(number, process, None, receiver)


def _run_spawned(work: Callable[[], Outcome], of: int, sender: Connection, encoding: str) -> None:
    """Do the work in a process that was started anew; what it says goes where its outcome goes, a way that all systems have.

    A last byte tells where it ends, not the end of the pipe: multiprocessing's tracker holds that too, and ends later.
    """
    signal.signal(signal.SIGINT, leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    output, said = os.pipe()
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    # Windows' own streams would go on writing to its console.
    sys.stdout = open(1, "w", buffering=1, encoding=encoding, errors="replace", newline="\n", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=encoding, errors="replace", newline="\n", closefd=False)  # noqa: SIM115
    is_over = threading.Event()
    reader = threading.Thread(target=_send_on, args=(output, sender, is_over), daemon=True)
    reader.start()
    try:
        outcome = _done(work, of)
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


def _done(work: Callable[[], Outcome], of: int) -> Outcome:
    """Do the work with a share of the threads."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // of))
    return work()


def _listen(workers: Sequence[_Worker], screen: Screen) -> Outcome:
    """Show what the workers say, line by line, until all are silent."""
    reached: dict[Path, int] = {}
    failed: dict[Path, str] = {}
    ends: dict[Any, _Worker] = {worker.outcome: worker for worker in workers}
    ends |= {worker.output: worker for worker in workers if worker.output is not None}
    while ends:
        for end in wait(list(ends)):
            worker = ends[end]
            if isinstance(end, int):
                chunk = os.read(end, 1 << 16)
                worker.hear(chunk, screen)
                if not chunk:
                    del ends[end]
                continue
            try:
                message = worker.outcome.recv()
            except (EOFError, OSError):  # it is over, or was stopped or killed
                del ends[end]
                worker.outcome.close()
                if worker.output is None:
                    worker.hear(b"", screen)
                continue
            if isinstance(message, bytes):
                worker.hear(message, screen)
            else:
                its_reached, its_failed = message
                reached |= its_reached
                failed |= its_failed
    return reached, failed


def _encoding() -> str:
    """Return how text is written to where this process prints; a table's rules are drawn in what that can show."""
    return sys.stdout.encoding or "utf-8"
