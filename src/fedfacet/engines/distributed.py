"""The engine of many processes, on one machine or many: rank 0 drives, the others serve. Exact."""

import contextlib
import operator
import os
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
from fedfacet.parallel.packing import Order, pack_tasks, unpack_task
from fedfacet.parallel.ranks import Message, Place, Ranks, find_place
from fedfacet.parallel.schedule import batches
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate, Query, State

T = TypeVar("T")


class DistributedEngine(Engine):
    """Deal the clients of a round to the processes that torchrun or SLURM started.

    Rank 0 has the federation: it selects, aggregates, logs and saves. The others have the clients' data too and do in ``serve``
    what it says. Every update travels to rank 0 by itself and is handed on in cohort order, so nothing is added up in another
    order than by the sequential engine. Where only this one process was started, it works like that engine.

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
        self._turn = 0

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
        parts = [self.clients.predict(model, shares[0], memory), *(self._result(ranks, rank).body for rank in ranks.others)]
        return Predictions(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def close(self) -> None:
        """Tell the other ranks that the run is over; they stop after the client in progress, whatever they still had to do."""
        ranks, self._ranks = self._ranks, None
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
        while True:
            order, bundles = ranks.receive(0)
            if isinstance(order, _Halt):
                with contextlib.suppress(EngineError):  # rank 0 may be gone by now
                    if order.answer:
                        ranks.post(0, Message(_Halted()))
                if order.leave:
                    return
                continue
            for result in self._results(order, bundles):
                if not ranks.has_room(0):
                    break  # rank 0 has something new to say, and wants no more of this
                ranks.post(0, result)

    def _results(self, order: "_Work | _Prediction", bundles: Sequence[State]) -> Iterator[Message]:
        """Yield what a serving rank has to say to an order; after a failure nothing more."""
        what = "evaluation"
        try:
            if isinstance(order, _Prediction):
                yield Message(self.clients.predict(bundles[0], order.batches, bundles[1]))
                return
            for task in (unpack_task(one, bundles) for one in order.orders):
                what = f"client {task.client_id} in round {task.round}"
                if order.query is None:
                    yield Message(*wire.pack_update(self.clients.train(task)))
                else:
                    yield Message(self.clients.answer(order.query, task))
        except Exception as error:
            yield Message(_Failed(wire.Failure.of(error), f"It was raised by {what}, on rank {self.rank}"))

    def _join(self) -> Ranks:
        if self._ranks is None:
            self._ranks = Ranks.join(self._place, self._backend, self.device, self._timeout_seconds)
        return self._ranks

    def _free_ranks(self) -> Ranks:
        """Return the ranks, once they have put down what nobody reads any more: the rest of a round that was given up."""
        if self.rank:
            raise RuntimeError(f"Expected rank 0 to run rounds, but got one on rank {self.rank}: call `serve` there.")
        self._turn += 1
        ranks = self._join()
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
        """Yield the results of all tasks in order: ``own``'s of those that stay on this rank, ``received``'s of the others."""
        ranks = self._free_ranks()
        turn = self._turn
        owners = deal([self.clients.num_steps(task) for task in tasks], self._place.num_ranks)
        common, packed = pack_tasks(tasks, owners, self._place.num_ranks)
        ranks.owed = {rank: owners.count(rank) for rank in ranks.others}
        ranks.send({rank: Message(_Work(query, packed[rank].orders), packed[rank].bundles) for rank in ranks.others}, common)
        for rank, owed in ranks.owed.items():
            if owed:
                ranks.expect(rank)
        mine = deque(position for position, owner in enumerate(owners) if owner == 0)
        done: dict[int, T] = {}
        for position, owner in enumerate(owners):
            assert turn == self._turn, "one round at a time"
            # Rank 0 is never idle while it has clients left: it trains ahead until the next result in order is there.
            while mine and (mine[0] == position or (owner and not ranks.ready(owner))):
                done[mine[0]] = own(tasks[mine[0]])
                mine.popleft()
            yield received(self._result(ranks, owner)) if owner else done.pop(position)

    def _result(self, ranks: Ranks, rank: int) -> Message:
        message = ranks.receive(rank)
        ranks.owed[rank] -= 1
        if isinstance(message.body, _Failed):
            ranks.owed[rank] = 0
            raise message.body.failure.noted(message.body.where)
        if ranks.owed[rank]:
            ranks.expect(rank)
        return message


_DEALT_TOGETHER = 16  # tasks per rank


def deal(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Return each task's rank: the longest go first, each to the rank that has the least to do; of several the last one.

    Rank 0, which aggregates besides, is so the last choice. Of many tasks a few per rank are dealt after another: a rank that
    got all its tasks from the end of a cohort would have to wait until rank 0, which takes updates in order, comes to them.

    Example:
        >>> deal([1, 1, 1, 3], 2)
        [0, 0, 0, 1]
    """
    loads, owners = [0.0] * num_ranks, [0] * len(costs)
    for first in range(0, len(costs), _DEALT_TOGETHER * num_ranks):
        together = range(first, min(first + _DEALT_TOGETHER * num_ranks, len(costs)))
        for position in sorted(together, key=lambda position: -costs[position]):
            owner = min(range(num_ranks), key=lambda rank: (loads[rank], -rank))
            owners[position] = owner
            loads[owner] += costs[position]
    return owners


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
    """From rank 0: train these clients, or have them answer a query."""

    query: Query | None
    orders: list[Order]


class _Prediction(NamedTuple):
    """From rank 0: say what a model, the first bundle beside, makes of these samples; the second is a client's memory."""

    batches: Sequence[NDArray[np.int64]]


class _Halt(NamedTuple):
    """From rank 0: put down what is left of the last order; say so if ``answer``, and end ``serve`` if ``leave``."""

    answer: bool
    leave: bool


class _Halted(NamedTuple):
    """To rank 0: what comes next belongs to the next order."""


class _Failed(NamedTuple):
    """To rank 0: an exception in place of a result, the last word on an order."""

    failure: wire.Failure
    where: str
