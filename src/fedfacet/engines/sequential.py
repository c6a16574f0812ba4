"""The reference engine: one client after another, in this process."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedfacet.clients.runtime import ClientRuntime
from fedfacet.engines.base import Engine
from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State


class SequentialEngine(Engine):
    """Run the clients one after another.

    Args:
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    def __init__(self, *, device: str = "auto") -> None:
        self.device = device
        self._runtime: ClientRuntime | None = None

    def setup(self, runtime: ClientRuntime) -> None:
        """Take the clients."""
        self._runtime = runtime

    @property
    def runtime(self) -> ClientRuntime:
        """The clients."""
        assert self._runtime is not None, "setup() comes first"
        return self._runtime

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        return (self.runtime.train(task) for task in tasks)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer."""
        return (self.runtime.answer(query, task) for task in tasks)

    def evaluate(self, weights: State, indices: NDArray[np.int64]) -> GroupCounts:
        """Count how a model does on some samples."""
        return self.runtime.evaluate(weights, indices)
