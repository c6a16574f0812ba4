"""What the ranks of a run say to each other."""

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet.parallel import wire
from fedfacet.parallel.message import Message
from fedfacet.parallel.sums import Step
from fedfacet.types import ClientTask, Query


class Work(NamedTuple):
    """From rank 0: handfuls of tasks will come, of training or of a query; beside, the bundles that all have in common.

    ``num_summed`` is how many updates are added up along the tree; ``None`` where each goes to rank 0.
    """

    query: Query | None
    num_summed: int | None = None


class Dealt(NamedTuple):
    """From rank 0: a task of a handful, where its bundles are, and its position in the cohort."""

    task: ClientTask
    places: tuple[int, int, int]
    position: int


class Combine(NamedTuple):
    """From rank 0: have the ranks' sums become one."""

    steps: Sequence[Step]


class Sum(NamedTuple):
    """A node's value on its way to another rank; its sums are beside, or none if all its leaves are absent.

    ``lost`` are ranks whose sums should have gone into it.
    """

    weight: float | None
    lost: Set[int]


class Prediction(NamedTuple):
    """From rank 0: say what a model, the first bundle beside, makes of these samples; the second is a client's memory."""

    batches: Sequence[NDArray[np.int64]]


class Halt(NamedTuple):
    """From rank 0: put down the tasks that are left; say so if ``answer``, and end ``serve`` if ``leave``."""

    answer: bool
    leave: bool


class Halted(NamedTuple):
    """To rank 0: what comes next belongs to the next order."""


class Failed(NamedTuple):
    """To rank 0: an exception in place of a result."""

    failure: wire.Failure
    where: str


def unless_failed(message: Message) -> Message:
    """Return a result, or raise the exception that came in its place."""
    if isinstance(message.body, Failed):
        raise message.body.failure.noted(message.body.where)
    return message
