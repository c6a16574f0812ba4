"""The engine for small models, inexact: clients side by side, every layer of all their models in one call."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

import torch

from fedfacet.clients.program import Clients
from fedfacet.clients.stack import CannotStackError, complaint
from fedfacet.clients.stacked_training import StackedTraining
from fedfacet.clients.stacking_trial import try_out
from fedfacet.engines.base import Engine
from fedfacet.types import ClientTask, ClientUpdate

log = logging.getLogger(__name__)

_CPU_BYTES = 2**29
_ACCELERATOR_SHARE = 1 / 3
_COPIES = 6  # of a client's weights: themselves, their gradient, two moments, the update, and one in between


class VectorizedEngine(Engine):
    """Train the clients of a round side by side.

    It pays where layers are small: 200 clients with a linear model take a tenth of the time that they take one by one. A trial
    before the first round finds out what cannot be stacked (layers that draw random numbers, optimizers that mix parameters,
    corrections with a memory); the clients are then trained one after another, with a warning, and ``fallback_reason`` says
    why. The tensors of an update are views of its stack's: whoever keeps one keeps them all.

    Args:
        clients_at_once: how many clients share a stack, 1 or larger; ``None`` for as many as fit into half a gigabyte, on an
            accelerator into a third of its memory.
    """

    def __init__(self, *, device: str = "auto", clients_at_once: int | None = None) -> None:
        if clients_at_once is not None and not (isinstance(clients_at_once, int) and clients_at_once >= 1):
            raise ValueError(
                f"Expected `engine.clients_at_once` to be a whole number, 1 or larger, or null, but got {clients_at_once!r}."
            )
        super().__init__(device=device)
        self.clients_at_once = clients_at_once
        self.fallback_reason: str | None = None
        self._stacking: StackedTraining | None = None
        self._size = 1

    def setup(self, clients: Clients) -> None:
        """Take the clients."""
        self.clients, self._stacking, self.fallback_reason = clients, None, None

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        waiting = list(tasks)
        if waiting and self._stacking is None:
            self._stacking = StackedTraining(self.clients)
            with self._falling_back():
                self._size = self.clients_at_once or _fitting(self.clients, try_out(self._stacking, waiting[0]))
        for first in range(0, len(waiting), self._size):
            yield from self._train(waiting[first : first + self._size])

    def _train(self, tasks: Sequence[ClientTask]) -> Iterator[ClientUpdate]:
        if self._stacking is not None and self.fallback_reason is None:
            with self._falling_back():
                return map(self.clients.transformed, self._stacking.train_clients(tasks), tasks)
        return map(self.clients.train, tasks)

    @contextlib.contextmanager
    def _falling_back(self) -> Iterator[None]:
        """Give up stacking upon any error in the block; what is wrong with the clients themselves comes up again without it."""
        try:
            yield
        except CannotStackError as error:
            self.fallback_reason = str(error)
        except Exception as error:
            fault = f"{type(error).__name__} ({complaint(error)})"
            self.fallback_reason = f"Expected training that can be stacked, but got {fault}"
        else:
            return
        log.warning("%s: the clients are trained one after another.", self.fallback_reason)


def _fitting(clients: Clients, bytes_per_sample: float) -> int:
    """Return how many clients fit into memory side by side, given what the backward pass needs of a sample."""
    budget: float = _CPU_BYTES
    if clients.device.type == "cuda":
        budget = _ACCELERATOR_SHARE * torch.cuda.get_device_properties(clients.device).total_memory
    weights = sum(tensor.nbytes for tensor in clients.program.tensors.values())
    samples = min(clients.local.batch_size, max(map(len, clients.owned)))
    return max(1, int(budget / (_COPIES * weights + 2 * samples * bytes_per_sample + 1)))
