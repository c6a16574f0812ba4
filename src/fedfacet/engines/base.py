"""The contract of an engine: who runs the clients. Exact engines change time, never results (law 4)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State

if TYPE_CHECKING:  # the server side of the wall imports this file, and must not pull in data/ with it
    from fedfacet.clients.runtime import ClientRuntime


class Engine(ABC):
    """Runs local training, queries and evaluation; remembers nothing between rounds."""

    device: str
    """Where clients run: ``"auto"`` (an accelerator if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``."""

    @abstractmethod
    def setup(self, runtime: "ClientRuntime") -> None:
        """Take the clients; called once, before anything else."""

    @abstractmethod
    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update, in the order of the tasks."""

    @abstractmethod
    def ask(self, query: "Query", tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer, in the order of the tasks."""

    @abstractmethod
    def evaluate(self, weights: State, indices: NDArray[np.int64]) -> GroupCounts:
        """Count how a model does on some samples of the data set."""

    def close(self) -> None:
        """Release what ``setup`` took."""
