"""The engine for small models, inexact: clients side by side, every layer of all their models in one call."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

import torch

from fedfacet.clients.recorded_steps import complaint
from fedfacet.clients.trainer import Clients
from fedfacet.clients.vectorized_stack import CannotStackError
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.clients.vectorized_trial import try_out
from fedfacet.engines.base import Engine
from fedfacet.types import ClientTask, ClientUpdate

log = logging.getLogger(__name__)

_CPU_BYTES = 2**29
_ACCELERATOR_SHARE = 1 / 3
_COPIES = 6  # of a client's weights: themselves, their gradient, two moments, the update, and one in between


class VectorizedEngine(Engine):
    """Train the clients of a round side by side.

    It pays where layers are small, and on a GPU, where the steps of a stack are recorded as CUDA graphs. Clients with several
    learning rates, or with and without a memory, make one stack each. A trial before the first round finds out what cannot be
    stacked (optimizers that mix parameters or are kept, draws that depend on the data, gradients of single samples); the
    clients are then trained one after another, with a warning, and ``fallback_reason`` says why. If a stack does not fit into
    a GPU's memory, fewer clients share one from there on. The tensors of an update are views of its stack's: keeping one keeps
    them all.

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
        while waiting:
            together = waiting[: self._size]
            updates = self._train(together)
            if updates is not None:
                yield from updates
                waiting = waiting[len(together) :]

    def _train(self, tasks: Sequence[ClientTask]) -> Iterator[ClientUpdate] | None:
        """Return the updates of some clients; ``None`` if so many do not fit into memory."""
        if self._stacking is not None and self.fallback_reason is None:
            with self._falling_back():
                try:
                    updates = self._stacking.train_clients(tasks)
                    return map(self.clients.transformed, updates, tasks) if self.clients.transforms else iter(updates)
                except torch.OutOfMemoryError:
                    if len(tasks) == 1:
                        raise
                self._take_fewer(len(tasks) // 2)
                return None
        return self.clients.train_each(tasks)

    def _take_fewer(self, clients: int) -> None:
        """Let fewer clients share a stack, and release the memory of the last one."""
        log.warning("%d clients at once do not fit into the memory of %s: taking %d.", self._size, self.clients.device, clients)
        self._size, self._stacking = clients, StackedTraining(self.clients)
        torch.cuda.empty_cache()

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
