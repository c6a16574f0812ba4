"""The cells of a sweep in several processes, each of which goes through the whole queue and leaves the others' cells alone."""

import contextlib
import ctypes
import multiprocessing
import os
import selectors
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedfacet.broken_pipe import reader_may_leave
from fedfacet.errors import ConfigError
from fedfacet.parallel.cores import num_cores
from fedfacet.runs.ending import leave

Outcome = tuple[dict[Path, int], dict[Path, str]]
"""What a worker went through, run folder -> how many rounds, and what failed there, run folder -> why."""

_PR_SET_PDEATHSIG = 1


def num_workers(asked: Any, num_cells: int) -> int:
    """Return how many workers ``sweep.workers`` asks for; ``auto`` is one per core.

    Raises:
        ConfigError: if it is smaller than 1.
    """
    if asked != "auto" and asked < 1:
        raise ConfigError(f"Expected `sweep.workers` to be auto, 1 or larger, but got {asked}: mend the value.")
    return min(num_cores() if asked == "auto" else asked, num_cells)


@dataclass(slots=True)
class _Worker:
    number: int
    process: BaseProcess
    output: int  # what it says comes out here
    outcome: Connection
    begun_line: bytes = b""


def run_workers(work: Callable[[], Outcome], number: int) -> Outcome:
    """Have ``number`` forks of this process do the same work; print what each says behind its number, and return what came out.

    A signal is passed on to all. A worker that is killed is named, and the others go on; where this process is killed, Linux
    kills its workers too.

    Args:
        work: to be called before torch is loaded, whose threads a fork would lack.
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
                os.kill(worker.process.pid or 0, signal_number)

    with contextlib.ExitStack() as stack:
        for worker_number in range(1, number + 1):
            workers.append(_started(work, worker_number, number, [worker.output for worker in workers]))
            stack.callback(os.close, workers[-1].output)
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, signal_number, signal.signal(signal_number, pass_on))
        reached, failed = _listen(workers)
        for worker in workers:
            worker.process.join()
    for worker in workers:
        if (status := worker.process.exitcode or 0) < 0 and not received:
            _say(f"worker {worker.number} was killed by {signal.Signals(-status).name}", sys.stderr)
    if received:
        sys.exit(128 + received[0])
    return reached, failed


def _started(work: Callable[[], Outcome], number: int, of: int, others: Sequence[int]) -> _Worker:
    context = multiprocessing.get_context("fork")
    output, said = os.pipe()
    receiver, sender = context.Pipe(duplex=False)
    sys.stdout.flush()
    process = context.Process(target=_run, args=(work, of, said, sender, [output, *others]))
    process.start()
    os.close(said)
    sender.close()
    return _Worker(number, process, output, receiver)


def _run(work: Callable[[], Outcome], of: int, said: int, sender: Connection, others: Sequence[int]) -> None:
    """Do the work in a fork."""
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in others:  # or nobody would notice that their reader is gone
        os.close(descriptor)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // of))
    sender.send(work())


def _listen(workers: Sequence[_Worker]) -> Outcome:
    """Print what the workers say, line by line, until all are silent."""
    reached: dict[Path, int] = {}
    failed: dict[Path, str] = {}
    with selectors.DefaultSelector() as selector:
        for each in workers:
            selector.register(each.output, selectors.EVENT_READ, (each, "output"))
            selector.register(each.outcome, selectors.EVENT_READ, (each, "outcome"))
        while selector.get_map():
            for key, _ in selector.select():
                worker, what = key.data
                if what == "outcome":
                    with contextlib.suppress(EOFError):  # it was stopped or killed
                        its_reached, its_failed = worker.outcome.recv()
                        reached |= its_reached
                        failed |= its_failed
                    selector.unregister(worker.outcome)
                    worker.outcome.close()
                    continue
                if not (chunk := os.read(worker.output, 1 << 16)):
                    selector.unregister(worker.output)
                said = worker.begun_line + chunk
                *lines, worker.begun_line = (said if chunk or not said else said + b"\n").split(b"\n")
                for line in lines:
                    _say(f"[{worker.number}] {line.decode(errors='replace')}", sys.stdout)
    return reached, failed


def _say(line: str, stream: Any) -> None:
    with reader_may_leave(stream):
        print(line, file=stream, flush=True)
