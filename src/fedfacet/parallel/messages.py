"""What the processes of a run say to each other: orders, results, and tasks whose common tensors travel once."""

import itertools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet.parallel.sums import Step
from fedfacet.types import ClientTask, Query, State


class Message(NamedTuple):
    """What one process sends another: a body that can be pickled, and tensors on the CPU, which travel as one run of bytes."""

    body: Any
    bundles: Sequence[State] = ()

    @classmethod
    def joined(cls, messages: Sequence["Message"]) -> "Message":
        """Return several messages as one, whose body is ``Joined``."""
        parts = [(message.body, len(message.bundles)) for message in messages]
        return cls(Joined(parts), [bundle for message in messages for bundle in message.bundles])

    def parted(self) -> list["Message"]:
        """Return the messages that one was joined of."""
        bundles = iter(self.bundles)
        return [Message(body, list(itertools.islice(bundles, number))) for body, number in self.body.parts]


class Joined(NamedTuple):
    """The body of several messages in one: each body, and how many of the bundles are its own."""

    parts: Sequence[tuple[Any, int]]


class Work(NamedTuple):
    """From rank 0: handfuls of orders will come; beside, the bundles that all have in common.

    ``num_summed`` is how many updates are added up along the tree; ``None`` where each goes to rank 0.
    """

    num_summed: int | None = None


class Order(NamedTuple):
    """What a process shall do: answer a ``query`` on a task, train on it without one, or without a task predict ``batches``.

    A task is packed: ``places`` are those of its bundles among the common ones, and then among its own, which come beside the
    order. To predict, the bundles are the model and what the client keeps. ``position`` is the task's in the cohort.
    """

    position: int = 0
    task: ClientTask | None = None
    places: tuple[int, ...] = ()
    query: Query | None = None
    batches: Sequence[NDArray[np.int64]] = ()

    @property
    def name(self) -> str:
        """What is done, for a message."""
        return f"client {self.task.client_id} in round {self.task.round}" if self.task is not None else "an evaluation"


class Combine(NamedTuple):
    """From rank 0: have the ranks' sums become one."""

    steps: Sequence[Step]


class Sum(NamedTuple):
    """A node's value on its way to another rank; its sums are beside, or none if all its leaves are absent.

    ``lost`` are ranks whose sums should have gone into it.
    """

    weight: float | None
    lost: Set[int]


class Halt(NamedTuple):
    """From rank 0: put down the tasks that are left; say so if ``answer``, and end ``serve`` if ``leave``."""

    answer: bool
    leave: bool


class Halted(NamedTuple):
    """To rank 0: what comes next belongs to the next order."""


def pack_tasks(tasks: Sequence[ClientTask], query: Query | None = None) -> tuple[list[State], list[Message]]:
    """Take tasks apart for the journey, to be trained on or to be asked about.

    Returns:
        The bundles that several tasks share, which everybody needs, and for each task its order, beside the task's own bundles.
    """
    bundles = {id(bundle): bundle for task in tasks for bundle in _bundles_of(task)}
    readers = Counter(key for task in tasks for key in {id(bundle) for bundle in _bundles_of(task)})
    common = [key for key in bundles if readers[key] > 1]
    common_places = {key: place for place, key in enumerate(common)}
    packed = []
    for position, task in enumerate(tasks):
        keys = [id(bundle) for bundle in _bundles_of(task)]
        own = [key for key in dict.fromkeys(keys) if key not in common_places]
        places = common_places | {key: len(common) + place for place, key in enumerate(own)}
        order = Order(position, without_bundles(task), tuple(places[key] for key in keys), query)
        packed.append(Message(order, [bundles[key] for key in own]))
    return [bundles[key] for key in common], packed


def unpack_task(task: ClientTask, places: Sequence[int], bundles: Sequence[State]) -> ClientTask:
    """Put a task together again; ``bundles`` are the common ones and its own."""
    return with_bundles(task, *(bundles[place] for place in places))


def _bundles_of(task: ClientTask) -> tuple[State, State, State]:
    return task.broadcast.model, task.broadcast.extras, task.memory


def without_bundles(task: ClientTask) -> ClientTask:
    """Return a task without its tensors."""
    return with_bundles(task, {}, {}, {})


def with_bundles(task: ClientTask, model: State, extras: State, memory: State) -> ClientTask:
    """Return a task with other tensors."""
    return replace(task, broadcast=replace(task.broadcast, model=model, extras=extras), memory=memory)
