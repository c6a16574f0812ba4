"""One copy of a data set for all ranks of a machine: the first of them loads it, the others see its memory."""

import contextlib
import pickle
from collections.abc import Callable
from typing import TypeVar

from fedfacet.errors import EngineError
from fedfacet.parallel import shared_memory
from fedfacet.parallel.messages import Message
from fedfacet.parallel.ranks import RankLost, Ranks

T = TypeVar("T")


def one_copy(ranks: Ranks, make: Callable[[], T]) -> T:
    """Return what ``make`` returns; all ranks call this, and of each machine only the first calls ``make``.

    Its tensors move into memory that the machine's other ranks map. A rank makes its own where the first one is lost, or where
    that memory cannot be mapped. Each does where the value cannot be pickled, or where there is no such memory for it.
    """
    here = [rank for rank, machine in enumerate(ranks.machines) if machine == ranks.machines[ranks.place.rank]]
    first, *others = here
    if ranks.place.rank == first:
        return _handed_on(ranks, make(), others)
    mapped: list[T] = []
    with contextlib.suppress(EngineError, OSError):
        if (packed := ranks.receive(first).body) is not None:
            mapped.append(pickle.loads(packed))
    with contextlib.suppress(EngineError):
        ranks.post(first, Message(None))
    return mapped[0] if mapped else make()


def _handed_on(ranks: Ranks, value: T, others: list[int]) -> T:
    """Give a value to other ranks of this machine, wait until each has mapped its memory, and return the value."""
    shared: tuple[bytes | None, list[shared_memory.SharedBytes]] = None, []
    if others:
        with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError, OSError, RuntimeError):
            shared = shared_memory.dumps(value)
    for rank in others:
        with contextlib.suppress(RankLost):  # nor does its answer come
            ranks.post(rank, Message(shared[0]))
    for rank in others:
        try:
            ranks.receive(rank)
        except RankLost as error:
            if ranks.place.rank == 0:  # which keeps count of those that live
                ranks.lose(error)
    return value  # the memory lasts as long as a rank uses it
