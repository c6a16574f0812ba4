"""Several clients at once, in processes that live as long as the run."""

import atexit
import collections
import contextlib
import dataclasses
import logging
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing.process import current_process
from multiprocessing.util import get_temp_dir
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.arguments import Number
from fedfacet.clients.client_data import evaluation_batch_size
from fedfacet.clients.prediction import Predictions
from fedfacet.cores import MAX_THREADS, check_processes, crowded, num_cores
from fedfacet.engines.base import Engine
from fedfacet.errors import EngineError
from fedfacet.parallel import shared_memory, wire
from fedfacet.parallel.messages import Order, pack_tasks
from fedfacet.parallel.processes import Child
from fedfacet.parallel.schedule import MAX_DEATHS, batches, pieces
from fedfacet.parallel.shared_memory import Channel
from fedfacet.parallel.worker import Common, Part, serve
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State

log = logging.getLogger(__name__)

UNGUARDED = 96
"""The exit code of a worker in which the user's script starts workers too, because it runs once more there."""


class WorkersEngine(Engine):
    """Run clients in persistent processes; the numbers are those of ``sequential`` at the same ``threads``, bit for bit.

    Processes are started when the first round needs them. They share one copy of the data set and of the round's model; updates
    return through shared memory and are handed on in cohort order. Two workers may train a client in two pieces, so that all
    are done at the same time (``parallel/schedule.py``). A worker that dies is replaced and its work done again: the work is a
    function of the round, so the run's result is the same.

    On a machine with several accelerators and ``device=cuda`` the workers take turns with them.

    Args:
        workers: how many processes at most, 1 or larger, up to 16 for each core; ``"auto"`` for as many as the machine has
            cores for ``threads`` each.
        timeout_seconds: how long a silent worker is waited for before another takes its place, larger than 0; a client's local
            training must take less.
        cohort_size: clients of a round; more processes than that are not started. ``None`` where it is not known.
    """

    def __init__(
        self,
        *,
        workers: int | str = "auto",
        device: str = "auto",
        timeout_seconds: float = 3600.0,
        cohort_size: int | None = None,
    ) -> None:
        if workers != "auto" and (not isinstance(workers, int) or workers < 1):
            raise ValueError(f"Expected `engine.workers` to be a whole number, 1 or larger, or auto, but got {workers!r}.")
        if isinstance(workers, int):
            check_processes("engine.workers", workers)
        Number("larger than 0").check("engine.timeout_seconds", timeout_seconds)
        super().__init__(device=device)
        self.workers = workers
        self.timeout_seconds = timeout_seconds
        self.cohort_size = cohort_size
        self._clients = b""
        self._held: list[shared_memory.SharedBytes] = []
        self._workers: list[_Worker] = []
        self._shared: Sequence[State] = []
        self._common: Common | None = None

    @property
    def default_threads(self) -> int:
        """The cores shared out; one where every core has a worker."""
        return 1 if self.workers == "auto" else max(1, num_cores() // int(self.workers))

    @property
    def num_workers(self) -> int:
        """How many processes there are to be."""
        threads = torch.get_num_threads()
        wanted = self.workers if isinstance(self.workers, int) else num_cores() // threads
        return max(1, min(wanted, self.cohort_size or wanted, MAX_THREADS // threads))

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        tasks = list(tasks)
        common, packed = pack_tasks(tasks)
        steps = [self.clients.num_steps(task) for task in tasks]
        jobs: list[_Job] = []
        first_part: dict[int, _Job] = {}
        for piece in pieces(steps, self.num_workers, divisible=self.clients.divisible):
            stop = piece.stop if piece.stop < steps[piece.position] else None
            jobs.append(_Job(*packed[piece.position], stop, first_part.get(piece.position)))
            first_part[piece.position] = jobs[-1]
        for numbers, bundles in self._results(jobs, len(tasks), common):
            yield wire.unpack_update(numbers, bundles)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer."""
        common, packed = pack_tasks(list(tasks), query)
        for answer, _ in self._results([_Job(*message) for message in packed], len(packed), common):
            yield answer

    def _predictions(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State) -> Predictions:
        shares = batches(splits, evaluation_batch_size(self.clients.dataset, self.clients.device), self.num_workers)
        jobs = [_Job(Order(position, batches=share), [memory]) for position, share in enumerate(shares)]
        return Predictions.joined([part for part, _ in self._results(jobs, len(jobs), [model])])

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.kill()
        self._workers = []
        self._clients, self._held = b"", []
        self._shared, self._common = [], None

    def _results(self, jobs: Sequence["_Job"], count: int, common: Sequence[State]) -> Iterator[tuple[Any, list[State]]]:
        """Have jobs done in the order given by whoever is idle; yield message and bundles of positions 0 .. count - 1.

        ``common`` are the bundles that all workers see.
        """
        if not jobs:
            return
        if getattr(current_process(), "_inheriting", False):  # multiprocessing imports the user's script in a worker
            os._exit(UNGUARDED)
        self._start(count)
        self._share(common)
        waiting = collections.deque(jobs)
        finished: dict[int, tuple[Any, list[State]]] = {}
        try:
            for position in range(count):
                self._hand_out(waiting)
                while position not in finished:
                    for worker in self._ready():
                        self._collect(worker, waiting, finished)
                    self._hand_out(waiting)
                yield finished.pop(position)
        finally:
            for worker in [worker for worker in self._workers if worker.job is not None]:
                # Nobody waits for this one any more, and its answer must not be taken for another's.
                worker.kill()
                self._workers.remove(worker)

    def _start(self, count: int) -> None:
        """Have as many workers as there are to be, and no more than pieces of work."""
        if not self._clients:
            clients = self.clients
            arguments = {one.name: getattr(clients, one.name) for one in dataclasses.fields(clients) if one.init}
            shared = {name: arguments.pop(name) for name in ("dataset", "partition", "held_out", "local_holdout")}
            del arguments["device"]  # each worker has its own
            # By its name: pickle would have the workers import whatever module comes first that has torch in it.
            arguments["memory_format"] = str(clients.memory_format).removeprefix("torch.")
            data, self._held = shared_memory.dumps(shared)
            try:
                self._clients = pickle.dumps((arguments, data))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise EngineError(
                    f"Expected clients that can be sent to other processes, but got this: {error}. Use functions and classes "
                    "of a module instead of lambdas and nested ones, or `engine=sequential`."
                ) from None
            atexit.register(self.close)
            remedy = f"take engine.workers={max(1, num_cores() // torch.get_num_threads())}"
            if clients.device.type == "cpu" and crowded(self.num_workers, num_cores(), remedy):
                os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when the server of the workers loads torch
        numbers = {worker.number for worker in self._workers}
        for number in range(min(self.num_workers, count)):
            if number not in numbers:
                self._workers.append(self._spawn(number))

    def _spawn(self, number: int) -> "_Worker":
        device = self.clients.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", number % torch.cuda.device_count())
        settings = {
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "device": str(device),
            "temporary": get_temp_dir(),
        }
        return _Worker(number, self._clients, settings)

    def _share(self, bundles: Sequence[State]) -> None:
        """Put bundles where all workers see them; none of these is at work."""
        if self._common is not None and list(map(id, bundles)) == list(map(id, self._shared)):
            return
        manifest = wire.manifest_of(bundles)
        if self._common is None or self._common.manifest != manifest:
            self._common = Common(shared_memory.SharedBytes(max(1, manifest.num_bytes)), manifest)
        wire.write(bundles, manifest, self._common.memory.tensor)
        self._shared = bundles

    def _hand_out(self, waiting: "collections.deque[_Job]") -> None:
        """Give every idle worker the first job that can be started."""
        for worker in self._workers:
            if worker.job is None:
                job = next((job for job in waiting if job.waits_for is None or job.waits_for.half is not None), None)
                if job is None:
                    return
                waiting.remove(job)
                worker.job, worker.since = job, time.monotonic()
                with contextlib.suppress(OSError):  # it is dead, which shows where its answer is read
                    worker.channel.send(*self._message(job, worker))

    def _message(self, job: "_Job", worker: "_Worker") -> tuple[Part, list[State]]:
        """Return an order as it travels: where the common bundles are if that is news, and what the first part has left."""
        news, worker.common = None if worker.common is self._common else self._common, self._common
        half, tensors = (job.waits_for and job.waits_for.half) or (None, [])
        return Part(job.order, news, half, job.stop), [*job.bundles, *tensors]

    def _ready(self) -> list["_Worker"]:
        """Wait for answers; a worker that gives none in time is ended, which shows where its answer is read."""
        busy = {worker.channel.connection: worker for worker in self._workers if worker.job is not None}
        due = min(worker.since for worker in busy.values()) + self.timeout_seconds
        answered = mp_connection.wait(list(busy), timeout=max(0.0, due - time.monotonic()))
        for worker in [] if answered else busy.values():
            if worker.job is not None and time.monotonic() - worker.since >= self.timeout_seconds:
                log.warning("A worker process was silent for %g s over %s.", self.timeout_seconds, worker.job.order.name)
                worker.process.kill()
        return [busy[end] for end in answered]  # type: ignore[index]

    def _collect(
        self, worker: "_Worker", waiting: "collections.deque[_Job]", finished: dict[int, tuple[Any, list[State]]]
    ) -> None:
        """Take a worker's answer, or put another in its place."""
        job, worker.job = worker.job, None
        assert job is not None
        try:
            message, views = worker.channel.receive()
        except (EOFError, OSError):
            waiting.appendleft(job)
            self._replace(worker, job)
            return
        wire.unless_failed(message)
        # On the core of the one whose answer has come last this process runs; where several are idle, its order comes last, or
        # it would wake up, take the core, and leave the others waiting for theirs.
        self._workers.remove(worker)
        self._workers.append(worker)
        bundles = [state.clone(bundle) for bundle in views]  # the worker's next answer overwrites them
        if job.stop is None:
            finished[job.order.position] = message, bundles
        else:
            job.half = message, bundles

    def _replace(self, worker: "_Worker", job: "_Job") -> None:
        worker.process.join(timeout=5)
        code, name = worker.process.exitcode, job.order.name
        worker.kill()
        self._workers.remove(worker)
        if code == UNGUARDED:
            raise EngineError(
                'Expected the script to train under `if __name__ == "__main__":`, because every worker process runs the rest '
                "of it again, but it trains without: put that line before what trains, or take SequentialEngine."
            )
        job.deaths += 1
        if job.deaths == MAX_DEATHS:
            raise EngineError(
                f"Expected a worker process to survive {name}, but {MAX_DEATHS} died of it (exit code {code}; -9 mostly "
                "means that memory ran out, or that `engine.timeout_seconds` is too short): lower `engine.workers` or "
                "`local.batch_size`, or look closer with `engine=debug`."
            )
        log.warning("A worker process died over %s (exit code %s); another one does it again.", name, code)
        self._workers.append(self._spawn(worker.number))


@dataclass(slots=True, eq=False)
class _Job:
    """A piece of work, and what has become of it."""

    order: Order
    bundles: Sequence[State]
    stop: int | None = None
    waits_for: "_Job | None" = None
    half: tuple[Any, list[State]] | None = None
    deaths: int = 0


class _Worker(Child):
    """A process, what it works at, and the common bundles that it knows of."""

    def __init__(self, number: int, clients: bytes, settings: dict[str, Any]) -> None:
        super().__init__(serve, clients, settings, name=f"worker-{number}")
        self.number = number
        self.channel = Channel(self.connection)
        self.job: _Job | None = None
        self.common: Common | None = None
        self.since = 0.0  # the clock when the job was handed out
