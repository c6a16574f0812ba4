"""The engine of many processes, on one machine or many: rank 0 drives, the others serve. Exact."""

import contextlib
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.clients.client_data import evaluation_batch_size
from fedfacet.clients.prediction import Predictions
from fedfacet.engines.base import Engine
from fedfacet.errors import ConfigError, EngineError
from fedfacet.parallel import wire
from fedfacet.parallel.cores import crowded
from fedfacet.parallel.dealing import Dealer, handfuls
from fedfacet.parallel.packing import PackedTask, pack_tasks, unpack_task
from fedfacet.parallel.ranks import Joined, Message, Place, Ranks, find_place, in_background
from fedfacet.parallel.schedule import batches
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate, Query, State

T = TypeVar("T")

_HANDFUL_SECONDS = 0.005  # a message, and the threads that see to it, take some tenths of a millisecond


class DistributedEngine(Engine):
    """Deal the clients of a round to the processes that torchrun or SLURM started.

    Rank 0 has the federation: it selects, aggregates, logs and saves. The others have the clients' data too and do in ``serve``
    what it says. A rank gets two clients, and one more for each result that it sends, so that a slow one gets fewer. Every
    update comes to rank 0 as it is and is handed on in cohort order, so nothing is added up in another order than by the
    sequential engine. Clients that take less than 5 milliseconds are dealt, and their updates sent, by the handful. Where only
    this one process was started, it works like that engine.

    Args:
        device: ``"auto"`` or ``"cuda"`` (the ranks of a machine share out its accelerators), ``"cpu"`` or ``"cuda:N"``.
        backend: ``"gloo"`` or ``"nccl"``, what tensors travel by; ``None`` for nccl where each rank of a machine has an
            accelerator of its own, else gloo.
        timeout_seconds: how long a silent rank is waited for, larger than 0; a client's local training must take less.

    Raises:
        ConfigError: if one does not fit the machine, or what SLURM was asked for does not fit together.
    """

    def __init__(
        self, *, device: str = "auto", backend: Literal["gloo", "nccl"] | None = None, timeout_seconds: float = 3600.0
    ) -> None:
        if backend not in (None, "gloo", "nccl"):
            raise ValueError(f"Expected `engine.backend` to be gloo, nccl or null, but got {backend!r}.")
        if not timeout_seconds > 0:
            raise ValueError(f"Expected `engine.timeout_seconds` to be larger than 0, but got {timeout_seconds}.")
        self._place = find_place()
        self.device = _own_device(device, self._place)
        if backend == "nccl" and not torch.cuda.is_available():
            raise ConfigError("Expected `engine.backend` nccl where there are accelerators, but there are none: give gloo.")
        alone_on_it = self.device != device and torch.cuda.device_count() >= self._place.num_local_ranks
        self._backend = backend or ("nccl" if alone_on_it else "gloo")
        self._timeout_seconds = timeout_seconds
        self._ranks: Ranks | None = None
        self._round: _Round | None = None
        self._fitting: dict[str, float] = {}  # how many steps, of training or of a query, rank 0 last did in a handful's time

    spans_processes = True

    @property
    def rank(self) -> int:
        """0 for the process that drives; the others serve."""
        return self._place.rank

    @property
    def default_threads(self) -> int:
        """This rank's part of its machine."""
        return max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // self._place.num_local_ranks))

    def share(self, value: Any = None) -> Any:
        """Send rank 0's value to all ranks."""
        if self._place.num_ranks == 1:
            return value
        if self.rank == 0:
            if hasattr(self, "clients") and self.clients.device.type == "cpu":
                crowded(self._place.num_local_ranks, os.cpu_count() or 1, "start fewer ranks on this machine")
            ranks = self._free_ranks()
            ranks.send({rank: Message(value) for rank in ranks.others})
            return value
        return self._join().receive(0).body

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        if self._place.num_ranks == 1:
            return super().run(tasks)
        return self._dealt(list(tasks), None, self.clients.train, _received_update)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer."""
        if self._place.num_ranks == 1:
            return super().ask(query, tasks)
        if not query.needs_model:
            tasks = [replace(task, broadcast=Broadcast({})) for task in tasks]
        return self._dealt(list(tasks), query, lambda task: self.clients.answer(query, task), operator.attrgetter("body"))

    def _predictions(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State) -> Predictions:
        batch_size = evaluation_batch_size(self.clients.dataset, self.clients.device)
        shares = batches(splits, batch_size, self._place.num_ranks)
        if not any(shares[:-1]):  # a single batch
            return self.clients.predict(model, splits, memory)
        ranks = self._free_ranks()
        ranks.owed = dict.fromkeys(ranks.others, 1)
        ranks.send({rank: Message(_Prediction(shares[rank])) for rank in ranks.others}, [model, memory])
        parts = [self.clients.predict(model, shares[0], memory), *(self._part(ranks, rank) for rank in ranks.others)]
        return Predictions(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def close(self) -> None:
        """Tell the other ranks that the run is over; they stop after the client in progress, whatever they still had to do."""
        ranks, self._ranks = self._ranks, None
        if self._round is not None:
            self._round.stop()
        if ranks is None or self.rank or ranks.lost:
            return
        ranks.halted = {rank for rank, owed in ranks.owed.items() if owed}
        with contextlib.suppress(EngineError):  # of a rank that is gone nobody need take leave
            ranks.send({rank: Message(_Halt(answer=rank in ranks.halted, leave=True)) for rank in ranks.others})

    def serve(self) -> None:
        """Do what rank 0 says until it says that the run is over.

        Raises:
            EngineError: if rank 0 is gone.
        """
        ranks = self._join()
        dealt: deque[list[ClientTask]] = deque()
        query: Query | None = None
        common: Sequence[State] = ()
        while True:
            while dealt and not ranks.ready(0):
                ranks.post(0, Message.joined([self._result(task, query) for task in dealt.popleft()]))
            order, bundles = ranks.receive(0)
            match order:
                case _Work():
                    query, common = order.query, bundles
                case Joined():
                    parts = Message(order, bundles).parted()
                    dealt.append([unpack_task(task, places, [*common, *own]) for (task, places), own in parts])
                case _Prediction():
                    ranks.post(0, self._prediction(order, *bundles))
                case _Halt():
                    dealt.clear()
                    with contextlib.suppress(EngineError):  # rank 0 may be gone by now
                        if order.answer:
                            ranks.post(0, Message(_Halted()))
                    if order.leave:
                        return

    def _result(self, task: ClientTask, query: Query | None) -> Message:
        """Return what a serving rank has to say to a task."""
        try:
            if query is None:
                return Message(*wire.pack_update(self.clients.train(task)))
            return Message(self.clients.answer(query, task))
        except Exception as error:
            return self._failed(error, f"client {task.client_id} in round {task.round}")

    def _prediction(self, order: "_Prediction", model: State, memory: State) -> Message:
        try:
            return Message(self.clients.predict(model, order.batches, memory))
        except Exception as error:
            return self._failed(error, "evaluation")

    def _failed(self, error: Exception, what: str) -> Message:
        return Message(_Failed(wire.Failure.of(error), f"It was raised by {what}, on rank {self.rank}"))

    def _join(self) -> Ranks:
        if self._ranks is None:
            self._ranks = Ranks.join(self._place, self._backend, self.device, self._timeout_seconds)
        return self._ranks

    def _free_ranks(self) -> Ranks:
        """Return the ranks, once they have put down what nobody reads any more: the rest of a round that was given up."""
        if self.rank:
            raise RuntimeError(f"Expected rank 0 to run rounds, but got one on rank {self.rank}: call `serve` there.")
        ranks = self._join()
        if self._round is not None:
            self._round.stop()
        owing = {rank for rank, owed in ranks.owed.items() if owed}
        if untold := owing - ranks.halted:
            ranks.send({rank: Message(_Halt(answer=True, leave=False)) for rank in untold})
        for rank in owing:
            while not isinstance(ranks.receive(rank).body, _Halted):
                pass
        ranks.owed, ranks.halted = {}, set()
        return ranks

    def _dealt(
        self, tasks: Sequence[ClientTask], query: Query | None, own: Callable[[ClientTask], T], received: Callable[[Message], T]
    ) -> Iterator[T]:
        """Yield the results of all tasks in order: ``own``'s of those that this rank takes, ``received``'s of the others."""
        ranks = self._free_ranks()
        common, packed = pack_tasks(tasks)
        kind = "" if query is None else query.name
        steps = [self.clients.num_steps(task) for task in tasks]
        hands = handfuls(steps, self._place.num_ranks, self._fitting.get(kind, 0))
        costs = [sum(steps[position] for position in hand) for hand in hands]
        self._round = now = _Round(ranks, [[packed[position] for position in hand] for hand in hands], costs)
        seconds = cost = 0.0
        try:
            ranks.send({rank: Message(_Work(query)) for rank in ranks.others}, common)
            ranks.wait_for(in_background(now.deal), "the other ranks to take a message")
            for turn in range(len(hands)):
                # Rank 0 is never idle while it may have clients: it trains ahead until the next results in order are there.
                while (mine := now.take(turn)) is not None:
                    began = time.perf_counter()
                    now.add(0, mine, [own(tasks[position]) for position in hands[mine]])
                    seconds, cost = seconds + time.perf_counter() - began, cost + costs[mine]
                    self._fitting[kind] = _HANDFUL_SECONDS * cost / max(seconds, 1e-9)
                results = deque(now.pop(turn))
                while results:
                    result = results.popleft()
                    yield received(_unless_failed(result)) if isinstance(result, Message) else result
                    del result  # it may be all that holds a model
        finally:
            now.stop()

    def _part(self, ranks: Ranks, rank: int) -> Predictions:
        message = ranks.receive(rank)
        ranks.owed[rank] = 0
        part: Predictions = _unless_failed(message).body
        return part


class _Round:
    """The handfuls of a round in progress: who has which, and the results that wait for their turn.

    The others' results are taken, and the next handfuls dealt, by the threads that hear from them: rank 0's main thread may be
    at work at a client for long.

    Args:
        ranks: the connection.
        hands: the tasks in cohort order, packed, by the handful.
        costs: of each handful.
    """

    def __init__(self, ranks: Ranks, hands: Sequence[Sequence[PackedTask]], costs: Sequence[float]) -> None:
        self._ranks = ranks
        self._hands = hands
        self._dealer = Dealer(costs, ranks.place.num_ranks)
        self._dealt: dict[int, deque[int]] = {rank: deque() for rank in ranks.others}
        self._results: dict[int, Sequence[Any]] = {}
        self._error: Exception | None = None
        self._over = False
        self._changed = threading.Condition()  # whoever has it may touch all this, and send tasks
        ranks.owed = dict.fromkeys(ranks.others, 0)

    def deal(self) -> None:
        """Send tasks to whoever should have more; not for the main thread, where an interrupt could leave one halfway."""
        with self._changed, self._minded():
            for in_hand in (0, 1):  # nobody gets a second handful before everybody has a first
                for rank, dealt in self._dealt.items():
                    if not self._over and len(dealt) == in_hand and (turn := self._dealer.take(rank)) is not None:
                        self._ranks.owed[rank] += 1
                        dealt.append(turn)
                        self._ranks.post(
                            rank, Message.joined([Message((one.task, one.places), one.bundles) for one in self._hands[turn]])
                        )
                        if not in_hand:
                            self._listen(rank)

    def take(self, turn: int) -> int | None:
        """Return a handful for rank 0; or ``None``, once the results of the one whose turn it is are there.

        Raises:
            EngineError: if a rank is gone, or silent for too long.
        """
        with self._changed:
            assert not self._over, "one round at a time"
            while turn not in self._results:
                if self._error is not None:
                    raise self._error
                if (mine := self._dealer.take(0)) is not None:
                    return mine
                if not self._changed.wait(self._ranks.timeout_seconds):
                    owner = next(rank for rank, dealt in self._dealt.items() if turn in dealt)
                    raise self._ranks.silent(f"rank {owner} to go on")
            return None

    def add(self, rank: int, turn: int, results: Sequence[Any]) -> None:
        """Keep the results of a handful until its turn."""
        with self._changed:
            self._results[turn] = results
            self._dealer.done(rank, turn)
            self._changed.notify()

    def pop(self, turn: int) -> Sequence[Any]:
        """Return the results whose turn has come."""
        with self._changed:
            if self._dealer.used(turn):
                in_background(self.deal)
            return self._results.pop(turn)

    def stop(self) -> None:
        """Deal no more, and leave what is still to come to whoever begins the next round."""
        with self._changed:
            self._over = True

    def _listen(self, rank: int) -> None:
        self._ranks.expect(rank).add_done_callback(lambda _: self._heard(rank))

    def _heard(self, rank: int) -> None:
        """Take a rank's results, and deal on."""
        with self._changed, self._minded():
            if self._over:
                return
            message = self._ranks.receive(rank)
            self._ranks.owed[rank] -= 1
            dealt = self._dealt[rank]
            self.add(rank, dealt.popleft(), message.parted())
            if dealt:
                self._listen(rank)
            self.deal()

    @contextlib.contextmanager
    def _minded(self) -> Iterator[None]:
        """Leave an error for the main thread: nobody else looks at what a thread raises."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error
            self._changed.notify()


def _unless_failed(message: Message) -> Message:
    """Return a result, or raise the exception that came in its place."""
    if isinstance(message.body, _Failed):
        raise message.body.failure.noted(message.body.where)
    return message


def _received_update(message: Message) -> ClientUpdate:
    update = wire.unpack_update(message.body, message.bundles)
    # The rest of the message is freed with the round; these may be kept longer, and must not keep all of it.
    return replace(update, extras=state.clone(update.extras), memory=state.clone(update.memory))


def _own_device(name: str, place: Place) -> str:
    """Return the accelerator that is this rank's, where the ranks of a machine share them out."""
    if name not in ("auto", "cuda") or place.num_ranks == 1 or not torch.cuda.is_available():
        return name
    return f"cuda:{place.local_rank % torch.cuda.device_count()}"


class _Work(NamedTuple):
    """From rank 0: handfuls of tasks will come, of training or of a query; beside, the bundles that all have in common."""

    query: Query | None


class _Prediction(NamedTuple):
    """From rank 0: say what a model, the first bundle beside, makes of these samples; the second is a client's memory."""

    batches: Sequence[NDArray[np.int64]]


class _Halt(NamedTuple):
    """From rank 0: put down the tasks that are left; say so if ``answer``, and end ``serve`` if ``leave``."""

    answer: bool
    leave: bool


class _Halted(NamedTuple):
    """To rank 0: what comes next belongs to the next order."""


class _Failed(NamedTuple):
    """To rank 0: an exception in place of a result."""

    failure: wire.Failure
    where: str
