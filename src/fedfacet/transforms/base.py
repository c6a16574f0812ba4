"""The contract of a transform."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_whole
from fedfacet.types import ClientTask, ClientUpdate


class UpdateTransform(ABC):
    """What happens to an update before it leaves the client: its last deed."""

    clients: Sequence[int] | None = None
    """To whose updates it happens; ``None`` for everybody's. A federation without such a client is refused."""

    relabelled: ClassVar[Callable[..., NDArray[np.int64]] | None] = None
    """``relabelled(self, client_id, y, num_classes)`` returns the classes that a client takes its samples to have.

    It is called once for every client, before the first round, with the true ones, shape (n_k,), which it does not write to.
    What the client trains on and what it answers follows from them. ``None`` for the true ones.
    """

    needs: frozenset[str] = frozenset()
    """What some other part must give."""

    needs_full_batch: bool = False
    """Whether an update has to be a client's gradient: one step on all of its samples, at a learning rate that stays."""

    needs_devices: ClassVar[bool] = False
    """Whether it asks how fast clients' lines are."""

    on_lines: ClassVar[Callable[..., NDArray[np.float64]] | None] = None
    """``on_lines(self, up_K)`` looks at the bytes per second that clients send, shape (K,), once, before the first round.

    It returns what they come to with this transform. ``None`` where it does not look at them.
    """

    @abstractmethod
    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is sent, drawing from ``rng`` only."""

    def consider(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Return what becomes of an update after ``apply``, in view of what the client was sent and of what it kept."""
        return update


def named(clients: Sequence[Any]) -> tuple[int, ...]:
    """Return the clients that a configuration names, or raise ``ValueError`` if one is no whole number, 0 or larger."""
    for client_id in clients:
        check_whole("clients", client_id, 0)
    return tuple(clients)
