"""Tasks on their way to other processes: what several of them share travels once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedfacet.types import ClientTask, State


class Order(NamedTuple):
    """A task without its bundles, and where these are among the bundles that its rank gets."""

    task: ClientTask
    model: int
    extras: int
    memory: int


class PackedTasks(NamedTuple):
    """One rank's tasks in cohort order, and the rank's own bundles; the common ones come in front of them."""

    orders: list[Order]
    bundles: list[State]


def pack_tasks(tasks: Sequence[ClientTask], owners: Sequence[int], num_ranks: int) -> tuple[list[State], list[PackedTasks]]:
    """Take tasks apart for the journey; a bundle that several tasks share travels once.

    Returns:
        The bundles that several ranks other than 0 need, and per rank its tasks; those of rank 0 stay where they are.
    """
    bundles: dict[int, State] = {}
    readers: dict[int, set[int]] = {}
    for task, owner in zip(tasks, owners, strict=True):
        for bundle in _bundles_of(task) if owner else ():
            bundles[id(bundle)] = bundle
            readers.setdefault(id(bundle), set()).add(owner)
    common = [key for key in bundles if len(readers[key]) > 1]
    packed = []
    for rank in range(num_ranks):
        own = [key for key in bundles if readers[key] == {rank}]
        place = {key: position for position, key in enumerate(common + own)}
        orders = [
            Order(without_bundles(task), *(place[id(bundle)] for bundle in _bundles_of(task)))
            for task, owner in zip(tasks, owners, strict=True)
            if owner == rank != 0
        ]
        packed.append(PackedTasks(orders, [bundles[key] for key in own]))
    return [bundles[key] for key in common], packed


def unpack_task(order: Order, bundles: Sequence[State]) -> ClientTask:
    """Put a task together again; ``bundles`` are the common ones and the rank's own."""
    return with_bundles(order.task, *(bundles[position] for position in order[1:]))


def _bundles_of(task: ClientTask) -> tuple[State, State, State]:
    return task.broadcast.model, task.broadcast.extras, task.memory


def without_bundles(task: ClientTask) -> ClientTask:
    """Return a task without its tensors."""
    return with_bundles(task, {}, {}, {})


def with_bundles(task: ClientTask, model: State, extras: State, memory: State) -> ClientTask:
    """Return a task with other tensors."""
    return replace(task, broadcast=replace(task.broadcast, model=model, extras=extras), memory=memory)
