"""A client's training between two of its steps, where another process takes it up, or where a query has left it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedfacet.types import ClientTask, State


@dataclass(frozen=True, slots=True, eq=False)
class HalfTrained:
    """A client's training that was put down between two steps, to be taken up by whoever has time.

    Attributes:
        num_steps: steps taken so far.
        weights: of the federated module.
        optimizer: the optimizer's state per parameter.
        generators: states of torch's generators, the CPU's first, and where they matter those of numpy's and Python's in one.
        loss_sum: over the samples seen so far.
        num_seen: samples seen so far.
    """

    num_steps: int
    weights: State
    optimizer: dict[int, dict[str, Any]]
    generators: list[Tensor]
    loss_sum: float
    num_seen: int


class ProbedClients:
    """Half-trained clients of one round, so that those who are selected need not take their first steps again.

    Nothing hangs on it: a client that is not found is trained from the start, with the same result.

    Args:
        max_bytes: how much memory their weights and optimizers may take; what does not fit is not kept.
    """

    def __init__(self, max_bytes: int = 2**29) -> None:
        self._max_bytes = max_bytes
        self.kept: dict[int, _Probed] = {}
        self._of: tuple[int, int] | None = None

    def keep(self, task: ClientTask, half: HalfTrained) -> None:
        """Keep a client that was put down, in place of an earlier one; those of other rounds are forgotten."""
        self._turn_to(task)
        self.kept.pop(task.client_id, None)
        size = _num_bytes([half.weights, *half.optimizer.values()])
        if size + sum(probed.num_bytes for probed in self.kept.values()) <= self._max_bytes:
            self.kept[task.client_id] = _Probed(task, half, size)

    def find(self, task: ClientTask, stop: int) -> HalfTrained | None:
        """Return a client that was put down before step ``stop`` of the training that ``task`` orders, or ``None``.

        Only what is the very same will do: equal weights at another place may have been equal by chance, or be on their way to
        become others.
        """
        self._turn_to(task)
        probed = self.kept.get(task.client_id)
        if probed is None or probed.half.num_steps >= stop:
            return None
        asked, ordered = probed.task, task
        same = (
            asked.step_fraction == ordered.step_fraction  # what an objective does first may depend on how much is to follow
            and asked.lr_factor == ordered.lr_factor
            and asked.broadcast.model is ordered.broadcast.model
            and same_tensors(asked.broadcast.extras, ordered.broadcast.extras)
            and same_tensors(asked.memory, ordered.memory)
        )
        return probed.half if same else None

    def _turn_to(self, task: ClientTask) -> None:
        if self._of != (task.seed, task.round):
            self._of = task.seed, task.round
            self.kept.clear()


class _Probed(NamedTuple):
    task: ClientTask
    half: HalfTrained
    num_bytes: int


def same_tensors(left: State, right: State) -> bool:
    """Tell whether two bundles hold the very same tensors, not equal ones."""
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


def _num_bytes(bundles: Iterable[Mapping[str, Any]]) -> int:
    return sum(value.nbytes for bundle in bundles for value in bundle.values() if isinstance(value, Tensor))
