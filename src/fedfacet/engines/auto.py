"""The engine that tries out what is fastest here."""

import copy
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.clients.prediction import Predictions
from fedfacet.clients.trainer import Clients
from fedfacet.cores import num_cores
from fedfacet.engines.base import Engine
from fedfacet.engines.graphs import GraphsEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.machine_memory import peak_memory, reported_memory
from fedfacet.parallel.schedule import makespan, pieces
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate, Query, State

log = logging.getLogger(__name__)

BUDGET_SECONDS = 1.0  # how long one way of training is tried out, beyond its first steps
WORKER_START_SECONDS = 6.0  # what importing torch and lightning takes a new process
WORKER_SLOWDOWN = 1.1  # processes side by side share caches and memory
HAND_OVER_SECONDS = 2.5e-4  # what sending a client's order and taking its update takes this process, while a worker waits
THREADS_SLOWDOWN = 1.05  # threads wait for each other, so other programs slow them down more than a single one
COMPILE_SECONDS = 60.0  # roughly what compiling a model takes; it is tried for runs that take ten times as long

_IN_THIS_PROCESS: dict[str, type[Engine]] = {
    "sequential": SequentialEngine,
    "graphs": GraphsEngine,
    "vectorized": VectorizedEngine,
}


class AutoEngine(Engine):
    """Try out, before the first round, which engine and how many torch threads per client are fastest, and use those.

    A few clients are trained on throw-away weights in this process, with one torch thread and with as many as there are cores.
    What several worker processes would take follows from that and from how a cohort's steps can be dealt to them. The choice is
    printed with its reason. ``src/train.py`` writes it into the run before round 1, so that a resumed run uses it again.

    Args:
        allow_inexact: also admit what rounds differently: clients trained side by side (``vectorized``), a compiled model, and
            bfloat16. On a GPU ``graphs`` is tried too, which is exact.
        choice: what an earlier run chose: ``engine`` and its arguments, with the reason under ``why``; ``None`` to try out.
    """

    def __init__(self, *, allow_inexact: bool = False, device: str = "auto", choice: Mapping[str, Any] | None = None) -> None:
        super().__init__(device=device)
        self.allow_inexact = allow_inexact
        self.choice = choice
        self._engine: Engine | None = None

    def setup(self, clients: Clients) -> None:
        """Take the clients, for an engine that was asked for its name before."""
        super().setup(clients)
        self._engine = None

    @property
    def name(self) -> str:
        """The chosen engine's name."""
        return self.engine.name

    @property
    def engine(self) -> Engine:
        """The chosen engine; where nothing is chosen yet it is the sequential one."""
        if self._engine is None:
            self._engine = _made(self.choice or {"engine": "sequential"}, self.device)
            if hasattr(self, "clients"):
                self._engine.setup(self.clients)
        return self._engine

    def choose(self, clients: Clients, cohort_size: int, rounds: int, free: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Try out what is fastest; return what to pass as ``choice``, and values of the settings named in ``free``.

        Args:
            clients: its weights are scratch space.
            cohort_size: how many clients a round has.
            rounds: how many there are to run, so that the start of processes is weighed against what they save.
            free: which of ``threads``, ``precision`` and ``compile`` may be chosen too; the others stay what they are.
        """
        trial = _Trial(clients, cohort_size, rounds)
        threads = [torch.get_num_threads()]
        if "threads" in free:
            threads = sorted({1, num_cores()}) if clients.device.type == "cpu" else [1]
        before = torch.get_num_threads()
        try:
            for number in threads:
                torch.set_num_threads(number)
                trial.in_this_process(clients, number)
                trial.with_workers(number)
                if clients.device.type == "cuda":
                    trial.whole_rounds("graphs", number)
                if self.allow_inexact:
                    trial.whole_rounds("vectorized", number)
                    if "precision" in free:
                        trial.in_this_process(replace(clients, precision="bf16-mixed"), number, precision="bf16-mixed")
            takes_compiled = clients.privacy is None  # gradients sample by sample are not
            if (
                self.allow_inexact
                and "compile" in free
                and takes_compiled
                and min(trial.options).seconds * rounds > 10 * COMPILE_SECONDS
            ):
                torch.set_num_threads(max(threads))
                compiled = replace(clients, objective=copy.deepcopy(clients.objective), compile=True)
                trial.in_this_process(compiled, max(threads), compile=True)
        finally:
            torch.set_num_threads(before)
        best = min(trial.options)
        others = "; ".join(map(str, sorted(trial.options)[1:])) or "nothing else to choose from"
        why = f"{best}, for {rounds} rounds of {trial.work}; {others}"
        log.info("engine=auto: %s", why)
        print(f"engine=auto: {why}", file=sys.stderr, flush=True)
        settled = {"threads": best.threads, "precision": best.precision, "compile": best.compile}
        return best.choice | {"why": why}, {name: value for name, value in settled.items() if name in free}

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update, in the order of the tasks."""
        return self.engine.run(tasks)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer, in the order of the tasks."""
        return self.engine.ask(query, tasks)

    def predict(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State | None = None) -> list[Predictions]:
        """Return what a model says of the samples of some splits."""
        return self.engine.predict(model, splits, memory)

    def close(self) -> None:
        """Release what the chosen engine holds."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@dataclass(frozen=True, order=True)
class _Option:
    """A way to train, ordered by what a round takes, its share of the start included."""

    total: float
    seconds: float
    start: float
    label: str = field(compare=False)
    choice: dict[str, Any] = field(compare=False)
    threads: int = field(compare=False)
    precision: str = field(compare=False, default="32-true")
    compile: bool = field(compare=False, default=False)

    def __str__(self) -> str:
        start = f" and {self.start:.0f} s to start" if self.start else ""
        return f"{self.label}: {self.seconds:.3g} s a round{start}"


class _Trial:
    """What has been tried out so far."""

    def __init__(self, clients: Clients, cohort_size: int, rounds: int) -> None:
        self.clients = clients
        self.rounds = rounds
        self.options: list[_Option] = []
        tried = np.linspace(0, clients.partition.num_clients - 1, cohort_size).round().astype(int)
        start = Broadcast(state.clone(clients.program.tensors))
        self.tasks = [ClientTask(int(client_id), 1, 0, start) for client_id in tried]
        self.steps = [clients.num_steps(task) for task in self.tasks]
        self.work = f"{len(self.tasks)} clients x {sum(self.steps) / len(self.tasks):g} steps"

    def in_this_process(self, clients: Clients, threads: int, *, precision: str = "32-true", compile: bool = False) -> None:
        """Try one client after another."""
        taken = self._seconds_per_step(clients) * sum(self.steps)
        if threads > 1 and clients.device.type == "cpu":
            taken *= THREADS_SLOWDOWN
        extras = "".join([f", {precision}" if precision != "32-true" else "", ", compiled" if compile else ""])
        start = COMPILE_SECONDS if compile else 0.0
        self._add(
            f"sequential, {_threads(threads)}{extras}", taken, start, {"engine": "sequential"}, threads, precision, compile
        )

    def with_workers(self, threads: int) -> None:
        """Work out what processes would take that have ``threads`` each; one client after another was tried with as many."""
        per_step = self.options[-1].seconds / sum(self.steps)
        device = self.clients.device
        if device.type == "cuda":
            most = torch.cuda.device_count() if device.index is None else 1
        else:
            most = min(num_cores() // threads, _fitting_processes())
        if (number := min(most, len(self.tasks))) < 2:
            return
        dealt = makespan(pieces(self.steps, number, divisible=self.clients.divisible), number)
        self._add(
            f"workers={number}, {_threads(threads)} each",
            per_step * dealt * (WORKER_SLOWDOWN if device.type == "cpu" else 1.0) + HAND_OVER_SECONDS * len(self.tasks),
            WORKER_START_SECONDS * max(1, number / num_cores()),
            {"engine": "workers", "workers": number},
            threads,
        )

    def whole_rounds(self, name: str, threads: int) -> None:
        """Try an engine on all clients of a round, unless it finds out that it has to train them one after another."""
        engine = _IN_THIS_PROCESS[name](device=str(self.clients.device))
        engine.setup(self.clients)
        seconds = []
        own_log = logging.getLogger(type(engine).__module__)
        own_log.disabled = True  # a trial that fails is no reason to warn
        try:
            for _ in range(3):
                begin = time.perf_counter()
                for _ in engine.run(self.tasks):
                    if getattr(engine, "fallback_reason", None) is not None:
                        return
                seconds.append(time.perf_counter() - begin)
                if seconds[0] > 3 * BUDGET_SECONDS:
                    break
        finally:
            own_log.disabled = False
            engine.close()
        self._add(f"{name}, {_threads(threads)}", min(seconds), 0.0, {"engine": name}, threads)

    def _add(self, label: str, seconds: float, start: float, choice: dict[str, Any], threads: int, *settings: Any) -> None:
        self.options.append(_Option(seconds + start / self.rounds, seconds, start, label, choice, threads, *settings))

    def _seconds_per_step(self, clients: Clients) -> float:
        """Train clients until the time is up; the first steps of all do not count."""
        task, steps = self.tasks[0], self.steps[0]
        clients.train_part(task, None, min(2, steps - 1) or None)
        taken, done = 0.0, 0
        for task, steps in zip(self.tasks, self.steps, strict=True):
            per_step = taken / done if done else 0.0
            stop = None if per_step * steps <= BUDGET_SECONDS and done else min(4, steps - 1) or None
            begin = time.perf_counter()
            clients.train_part(task, None, stop)
            if clients.device.type == "cuda":
                torch.cuda.synchronize(clients.device)
            taken += time.perf_counter() - begin
            done += stop or steps
            if taken > BUDGET_SECONDS:
                break
        return taken / done


def _made(choice: Mapping[str, Any], device: str) -> Engine:
    if choice["engine"] == "workers":
        return WorkersEngine(workers=min(choice["workers"], num_cores()), device=device)
    return _IN_THIS_PROCESS[choice["engine"]](device=device)


def _fitting_processes() -> int:
    """Return how many processes of this one's size the free memory has room for, 1 at least."""
    free = reported_memory()
    return num_cores() if free is None else max(1, int(0.8 * free / peak_memory()))


def _threads(number: int) -> str:
    return f"{number} thread" + "s" * (number != 1)
