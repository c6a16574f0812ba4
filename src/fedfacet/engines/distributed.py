"""The engine of many processes, on one machine or many: rank 0 drives, the others serve. Exact, unless ``sums`` is ``tree``."""

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.arguments import Number, check_choice
from fedfacet.clients.client_data import evaluation_batch_size
from fedfacet.clients.prediction import Predictions, predict
from fedfacet.clients.queries.base import answer_query
from fedfacet.cores import crowded
from fedfacet.engines.base import Engine
from fedfacet.errors import ConfigError, EngineError
from fedfacet.parallel import wire
from fedfacet.parallel.messages import (
    Combine,
    Halt,
    Halted,
    Joined,
    Message,
    Order,
    Sum,
    Work,
    pack_tasks,
    unpack_task,
)
from fedfacet.parallel.one_copy import one_copy
from fedfacet.parallel.place import Place, find_place
from fedfacet.parallel.ranks import MAX_RANKS_WITH_0, RankLost, Ranks, in_background
from fedfacet.parallel.schedule import batches
from fedfacet.parallel.sums import Step, TreeSum, Weighed, blocks, node_of, plan
from fedfacet.parallel.work_queue import DealtRound, handfuls
from fedfacet.parallel.worker import carry_out
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate, Query, State, SummedUpdate

T = TypeVar("T")

_HANDFUL_SECONDS = 0.005  # a message, and the threads that see to it, take some tenths of a millisecond


class DistributedEngine(Engine):
    """Deal the clients of a round to the processes that torchrun or SLURM started.

    Rank 0 has the federation: it selects, aggregates, logs and saves. The others have the clients' data too and do in ``serve``
    what it says. A rank gets two clients, and one more for each result that it sends, so that a slow one gets fewer. Clients
    that take less than 5 milliseconds are dealt, and their updates sent, by the handful. If a rank is lost, its clients are
    dealt again. Above 8 ranks, rank 0 does not train. Where only this one process was started, it trains all clients.

    With ``sums="cohort"`` every update reaches rank 0 as it is, in cohort order, and nothing is added up in another order than
    by the sequential engine. With ``sums="tree"`` the ranks add the updates up along a fixed binary tree over the positions of
    the cohort, and rank 0 receives their sum. The model then has the same bits for any number of ranks, and differs from the
    sequential engine's in the last bits.

    Args:
        device: ``"auto"`` or ``"cuda"`` (the ranks of a machine share out its accelerators), ``"cpu"`` or ``"cuda:N"``.
        backend: ``"gloo"`` or ``"nccl"``, what tensors travel by; ``None`` for nccl where each rank of a machine has an
            accelerator of its own, else gloo. With nccl, a lost rank ends the run.
        sums: ``"cohort"`` or ``"tree"``, the order in which the updates are added up.
        timeout_seconds: how long a silent rank is waited for, larger than 0; a client's local training must take less.

    Raises:
        ConfigError: if one does not fit the machine, or what SLURM was asked for does not fit together.
    """

    weigh: Callable[[ClientUpdate, ClientTask], tuple[SummedUpdate, Weighed | None]]
    """Returns an update without its tensors, and what it adds to the sum along the tree; the federation says how."""

    def __init__(
        self,
        *,
        device: str = "auto",
        backend: Literal["gloo", "nccl"] | None = None,
        sums: Literal["cohort", "tree"] = "cohort",
        timeout_seconds: float = 3600.0,
    ) -> None:
        if backend not in (None, "gloo", "nccl"):
            raise ValueError(f"Expected `engine.backend` to be gloo, nccl or null, but got {backend!r}.")
        check_choice("engine.sums", sums, ("cohort", "tree"))
        Number("larger than 0").check("engine.timeout_seconds", timeout_seconds)
        self._place = find_place()
        self.device = _own_device(device, self._place)
        if backend == "nccl" and not torch.cuda.is_available():
            raise ConfigError("Expected `engine.backend` nccl where there are accelerators, but there are none: give gloo.")
        alone_on_it = self.device != device and torch.cuda.device_count() >= self._place.num_local_ranks
        self._backend = backend or ("nccl" if alone_on_it else "gloo")
        self.sums = sums
        self._timeout_seconds = timeout_seconds
        self._ranks: Ranks | None = None
        self._round: DealtRound | None = None
        self._tree = TreeSum(0)
        self._fitting: dict[str, float] = {}  # how many steps, of training or of a query, rank 0 last did in a handful's time

    spans_processes = True

    @property
    def rank(self) -> int:
        """0 for the process that drives; the others serve."""
        return self._place.rank

    @property
    def name(self) -> str:
        """The class, and that sums are along the tree."""
        return super().name + (", sums=tree" if self.sums == "tree" else "")

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

    def one_copy(self, load: Callable[[], T]) -> T:
        """Return what ``load`` returns, of which the ranks of a machine hold one copy; all call this after ``share``."""
        return load() if self._place.num_ranks == 1 else one_copy(self._join(), load)

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update; with ``sums="tree"`` without its tensors, whose sum is the ``total`` after the last."""
        if self.sums == "tree":
            return self._summed(list(tasks))
        if self._place.num_ranks == 1:
            return super().run(tasks)
        return self._each(list(tasks), None, lambda _, task: self.clients.train(task), _received)

    def total(self) -> Weighed | None:
        """Return the sum of the last ``run``'s updates along the tree; ``None`` if no update was added."""
        tree, self._tree = self._tree, TreeSum(0)
        return tree.pop(tree.root)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer."""
        if self._place.num_ranks == 1:
            return super().ask(query, tasks)
        if not query.needs_model:
            tasks = [replace(task, broadcast=Broadcast({})) for task in tasks]
        return self._each(list(tasks), query, lambda _, task: answer_query(self.clients, query, task), _answered)

    def _predictions(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State) -> Predictions:
        batch_size = evaluation_batch_size(self.clients.dataset, self.clients.device)
        if sum(-(-len(split) // batch_size) for split in splits) < 2 or self._place.num_ranks == 1:
            return predict(self.clients, model, splits, memory)
        ranks = self._free_ranks()
        number = len(ranks.others) + (len(ranks.others) < MAX_RANKS_WITH_0)
        shares = [share for share in batches(splits, batch_size, number) if share]
        orders = [Message(Order(position, batches=share)) for position, share in enumerate(shares)]
        hands = [range(position, position + 1) for position in range(len(shares))]

        def own(position: int) -> Predictions:
            return predict(self.clients, model, shares[position], memory)

        costs = [len(share) for share in shares]
        return Predictions.joined(self._dealt(Work(), [model, memory], orders, hands, costs, own, _answered))

    def close(self) -> None:
        """Tell the other ranks that the run is over; they stop after the client in progress, whatever they still had to do."""
        ranks, self._ranks = self._ranks, None
        if self._round is not None:
            self._round.stop()
        if ranks is None or self.rank or ranks.stuck:
            return
        ranks.halted = {rank for rank, owed in ranks.owed.items() if owed}
        with contextlib.suppress(EngineError):  # of a rank that is gone nobody need take leave
            ranks.send({rank: Message(Halt(answer=rank in ranks.halted, leave=True)) for rank in ranks.others})

    def serve(self) -> None:
        """Do what rank 0 says until it says that the run is over.

        Raises:
            EngineError: if rank 0 is gone.
        """
        ranks = self._join()
        dealt: deque[list[Message]] = deque()
        work = Work()
        common: Sequence[State] = ()
        while True:
            while dealt and not ranks.ready(0):
                ranks.post(0, Message.joined([self._result(order, [*common, *own], work) for order, own in dealt.popleft()]))
            order, bundles = ranks.receive(0)
            match order:
                case Work():
                    work, common = order, bundles
                    self._tree = TreeSum(order.num_summed or 0)
                case Joined():
                    dealt.append(Message(order, bundles).parted())
                case Combine():
                    self._combine(self._tree.copy(), order.steps)
                case Halt():
                    dealt.clear()
                    with contextlib.suppress(EngineError):  # rank 0 may be gone by now
                        if order.answer:
                            ranks.post(0, Message(Halted()))
                    if order.leave:
                        return

    def _result(self, order: Order, bundles: Sequence[State], work: Work) -> Message:
        """Return what a serving rank has to say to an order."""
        try:
            if work.num_summed is None or order.task is None:
                return carry_out(order, bundles, self.clients)
            task = unpack_task(order.task, order.places, bundles)
            return Message(*wire.pack_update(self._added(order.position, task)))
        except Exception as error:
            return Message(wire.Failure.of(error, f"It was raised by {order.name}, on rank {self.rank}"))

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
            ranks.send({rank: Message(Halt(answer=True, leave=False)) for rank in sorted(untold)})
        for rank in owing & set(ranks.others):
            try:
                while not isinstance(ranks.receive(rank).body, Halted):
                    pass
            except RankLost as error:
                ranks.lose(error)
        ranks.owed, ranks.halted = {}, set()
        return ranks

    def _summed(self, tasks: Sequence[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield updates without their tensors, and add these up."""
        self._tree = TreeSum(len(tasks))
        if self._place.num_ranks == 1:
            yield from itertools.starmap(self._added, enumerate(tasks))
        else:
            yield from self._each(tasks, None, self._added, _received)

    def _added(self, position: int, task: ClientTask) -> ClientUpdate:
        """Have a client train, add its update to the sum, and return what is left of it."""
        update, value = self.weigh(self.clients.train(task), task)
        self._tree.add((0, position), value)
        return update

    def _each(
        self,
        tasks: Sequence[ClientTask],
        query: Query | None,
        own: Callable[[int, ClientTask], T],
        received: Callable[[Message], T],
    ) -> Iterator[T]:
        """Yield the results of all tasks in order; the arguments are those of ``_dealt``."""
        num_ranks = len(self._free_ranks().others) + 1
        common, orders = pack_tasks(tasks, query)
        kind = "" if query is None else query.name
        steps = [self.clients.num_steps(task) for task in tasks]
        sums = query is None and self.sums == "tree"
        hands = blocks(len(tasks), num_ranks) if sums else handfuls(steps, num_ranks, self._fitting.get(kind, 0))
        seconds = cost = 0.0

        def timed(position: int) -> T:
            nonlocal seconds, cost
            began = time.perf_counter()
            result = own(position, tasks[position])
            seconds, cost = seconds + time.perf_counter() - began, cost + steps[position]
            self._fitting[kind] = _HANDFUL_SECONDS * cost / max(seconds, 1e-9)
            return result

        yield from self._dealt(Work(len(tasks) if sums else None), common, orders, hands, steps, timed, received)

    def _dealt(
        self,
        work: Work,
        common: Sequence[State],
        orders: Sequence[Message],
        hands: Sequence[range],
        costs: Sequence[float],
        own: Callable[[int], T],
        received: Callable[[Message], T],
    ) -> Iterator[T]:
        """Yield the results of all orders: ``own``'s of those that this rank takes, ``received``'s of the others."""
        ranks, sums = self._join(), work.num_summed is not None
        ranks.send({rank: Message(work) for rank in ranks.others}, common)
        handed = [[orders[position] for position in hand] for hand in hands]
        costs = [sum(costs[position] for position in hand) for hand in hands]
        self._round = now = DealtRound(ranks, handed, costs, stays=sums)

        def work_until(turn: int) -> None:
            """Train ahead until the results of a turn are there: rank 0 is never idle while it may have clients."""
            while (mine := now.take(turn)) is not None:
                now.add(0, mine, [own(position) for position in hands[mine]])

        try:
            in_background(now.deal).result()
            for turn in range(len(hands)):
                work_until(turn)
                results = deque(now.pop(turn))
                while results:
                    result = results.popleft()
                    yield received(result) if isinstance(result, Message) else result
                    del result  # it may be all that holds a model
            while sums and hands:
                work_until(len(hands))
                if not (lost := self._combined(ranks, {node_of(hands[turn]): rank for turn, rank in now.holders.items()})):
                    break
                now.lose(lost)
        finally:
            now.stop()

    def _combined(self, ranks: Ranks, holders: dict[tuple[int, int], int]) -> list[RankLost]:
        """Make one of the ranks' sums, of which each holds some nodes; or return by what ranks were found to be lost."""
        steps, lost, tree = plan(holders, self._tree.size), [], self._tree.copy()
        for rank in steps.keys() - {0}:
            try:
                ranks.post(rank, Message(Combine(steps[rank])))
            except RankLost as error:
                lost.append(error)
        lost += self._combine(tree, steps.get(0, ()))
        if not lost:
            self._tree = tree
        return lost

    def _combine(self, tree: TreeSum, steps: Sequence[Step]) -> list[RankLost]:
        """Give parts of a sum to other ranks, and take others' parts; return by what ranks were found to be lost.

        A rank that lacks a part gives no value in its turn, but says who is lost. So all steps of all ranks come to an end.
        """
        ranks = self._join()
        lost: dict[int, RankLost] = {}
        for step in steps:
            try:
                if step.gives:
                    value = None if lost else tree.pop(step.node)
                    part = Sum(value.weight if value else None, frozenset(lost))
                    ranks.post(step.rank, Message(part, value.bundles if value else ()))
                else:
                    part, bundles = ranks.receive(step.rank)
                    lost |= {rank: ranks.gone(rank) for rank in part.lost}
                    if not lost:
                        tree.add(step.node, None if part.weight is None else Weighed(part.weight, bundles, is_own=True))
            except RankLost as error:
                if not step.gives:  # else it is noticed by the rank that waits for what this one should give
                    lost[error.rank] = error
        return list(lost.values())


def _received(message: Message) -> ClientUpdate:
    update = wire.unpack_update(wire.unless_failed(message.body), message.bundles)
    # The rest of the message is freed with the round; these may be kept longer, and must not keep all of it.
    return replace(update, extras=state.clone(update.extras), memory=state.clone(update.memory))


def _answered(message: Message) -> Any:
    return wire.unless_failed(message.body)


def _own_device(name: str, place: Place) -> str:
    """Return the accelerator that is this rank's, where the ranks of a machine share them out."""
    if name not in ("auto", "cuda") or place.num_ranks == 1 or not torch.cuda.is_available():
        return name
    return f"cuda:{place.local_rank % torch.cuda.device_count()}"
