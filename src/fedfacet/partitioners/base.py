"""The contract of a partitioner."""

import heapq
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Declared
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.types import Partition


class Partitioner(Declared, ABC):
    """Who owns which sample; draws only from ``rng.stream(self.seed, "partition...", ...)``.

    Arguments that are out of range raise ``ValueError``. The ``seed`` does not follow the run's seed.
    """

    option_group = "partition."

    uses_all_samples = False
    """Whether every sample goes to a client, so that validation samples must be set aside beforehand."""

    label: str = "y"
    """The data set's column by which samples are dealt: the classes, or metadata such as a role or a writer."""

    @property
    def demand(self) -> NDArray[np.int64] | None:
        """The samples per (class, attribute) cell that all clients together ask for; ``None`` if they take all."""
        return None

    @abstractmethod
    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal samples to clients.

        Args:
            y: the column ``label`` of the samples that may be dealt, by default their classes, integers of shape (N,).
            a: their attribute values, shape (N,).

        Returns:
            Per client sorted, pairwise disjoint positions in ``y``.

        Raises:
            InfeasiblePartitionError: if the samples do not suffice; the message names what was wanted and what there is.
        """


def check_enough(num_samples: int, num_clients: int, each: int, settings: str) -> None:
    """Raise ``InfeasiblePartitionError`` unless there are ``each`` samples for every client; ``settings`` can be lowered."""
    if num_samples < num_clients * each:
        raise InfeasiblePartitionError(
            f"Expected at least {each} {'sample' if each == 1 else 'samples'} for each of {num_clients} clients, but got "
            f"{num_samples} samples: lower {settings}."
        )


def checked_partition(dealt: object, num_samples: int, who: str) -> Partition:
    """Return what a partitioner dealt, which keeps to the contract; ``who`` is its name, for the message.

    Raises:
        TypeError: if it is no ``Partition`` of whole numbers.
        ValueError: if a position does not exist, is out of order, or has two owners.
    """
    wanted = f"Expected {who}.partition to return a Partition of each client's sorted positions, from 0 to {num_samples - 1},"
    if not isinstance(dealt, Partition):
        raise TypeError(f"{wanted} but got {type(dealt).__name__}: return `Partition(tuple_of_arrays)`.")
    holding = [client_id for client_id, client in enumerate(dealt.indices) if len(client)]
    positions = np.concatenate([dealt.indices[client_id] for client_id in holding] or [np.empty(0, np.int64)])
    if positions.dtype.kind not in "iu":
        raise TypeError(f"{wanted} but got numbers of type {positions.dtype}: return whole ones, as dtype=np.int64 makes them.")
    positions = positions.astype(np.int64)
    owners = np.repeat(holding, [len(dealt.indices[client_id]) for client_id in holding])
    beyond, at = (positions < 0) | (positions >= num_samples), np.flatnonzero
    if beyond.any():
        first = at(beyond)[0]
        raise ValueError(f"{wanted} but client {owners[first]} got {positions[first]}: leave it out.")
    falls = (np.diff(positions) <= 0) & (np.diff(owners) == 0)
    if falls.any():
        raise ValueError(f"{wanted} but those of client {owners[at(falls)[0]]} are not: `np.unique` sorts them, each once.")
    twice = np.bincount(positions, minlength=num_samples) > 1
    if twice.any():
        first = at(twice)[0]
        one, other = owners[positions == first][:2]
        raise ValueError(f"{wanted} of nobody else, but clients {one} and {other} both got {first}: choose one of them.")
    return dealt


def topped_up(owned: list[list[int]], min_samples: int) -> Partition:
    """Have clients with fewer than ``min_samples`` receive samples, one at a time, from the client that has most."""
    largest = [(-len(client), number) for number, client in enumerate(owned)]  # the first of those that have most is on top
    heapq.heapify(largest)
    for client in owned:
        while len(client) < min_samples:
            giver = largest[0][1]
            client.append(owned[giver].pop())
            heapq.heapreplace(largest, (-len(owned[giver]), giver))
    return Partition(tuple(np.sort(np.array(client, dtype=np.int64)) for client in owned))
