"""The contract of an engine: who runs the clients. Exact engines change time, never results (law 4)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.answer_form import MOST_SAMPLES
from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State

if TYPE_CHECKING:  # the server side of the wall imports this file, and must not pull in data/ with it
    from fedfacet.clients.prediction import Predictions
    from fedfacet.clients.trainer import Clients

T = TypeVar("T")


class Engine:
    """Runs local training, queries and evaluation: one client after another in this process, unless a subclass says otherwise.

    An engine remembers nothing between rounds. Arguments that are out of range raise ``ValueError``.

    Args:
        device: where clients run: ``"auto"`` (an accelerator if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    clients: "Clients"
    """Everybody's data and programs, once ``setup`` has taken them."""

    spans_processes = False
    """Whether the processes that a launcher started belong to one run."""

    trains_here = True
    """Whether clients train on this machine."""

    def __init__(self, *, device: str = "auto") -> None:
        self.device = device

    @property
    def rank(self) -> int:
        """This process's number among those that run the clients; only rank 0 has a federation, the others ``serve``."""
        return 0

    def share(self, value: Any = None) -> Any:
        """Return rank 0's value, on every rank; all of them call this before a run."""
        return value

    def one_copy(self, load: Callable[[], T]) -> T:
        """Return what ``load`` returns; the processes that a launcher started on one machine hold one copy of it."""
        return load()

    def serve(self) -> None:
        """Run clients for rank 0 until the run is over; for the other ranks."""

    @property
    def name(self) -> str:
        """What runs the clients, as a run's records call it."""
        return type(self).__name__

    @property
    def default_threads(self) -> int:
        """Torch threads per client where nobody says how many; sums over threads are part of the numbers of a run."""
        return torch.get_num_threads()

    def most_samples(self, client_id: int) -> int:
        """Return how many samples a client has at most, as far as the server knows."""
        return MOST_SAMPLES

    def setup(self, clients: "Clients") -> None:
        """Take the clients; called once, before anything else, and starts nothing."""
        self.clients = clients

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update, in the order of the tasks."""
        return self.clients.train_each(tasks)

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer, in the order of the tasks."""
        from fedfacet.clients.queries.base import answer_query  # late: see above

        return (answer_query(self.clients, query, task) for task in tasks)

    def predict(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State | None = None) -> "list[Predictions]":
        """Return what a model says of the samples of some splits.

        Args:
            model: its weights.
            splits: each given by the positions of its samples in the data set.
            memory: what a client keeps, for what this client would say; ``None`` for the model itself.
        """
        from fedfacet.clients.prediction import predict_mixed, split_up  # late: see above

        if getattr(self.clients.program_of(model).module, "sees_batch", False):
            return predict_mixed(lambda batches: self._predictions(model, batches, memory or {}), splits)
        return split_up(self._predictions(model, splits, memory or {}), splits)

    def evaluate(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State | None = None) -> list[GroupCounts]:
        """Count how a model does on some splits; the arguments are those of ``predict``."""
        from fedfacet.clients.prediction import count  # late: see above

        predictions = self.predict(model, splits, memory)
        return [count(self.clients.dataset, *pair) for pair in zip(predictions, splits, strict=True)]

    def measure_module(self, model: State, split: str, indices: NDArray[np.int64]) -> dict[str, float]:
        """Return what the module logs of some samples; always in this process. See ``clients.module_measurement``."""
        from fedfacet.clients.module_measurement import measure_module  # late: see above

        return measure_module(self.clients, model, split, indices)

    def head_gradients(self, model: State, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what ``clients.prediction`` finds of a model, shape (Y,); always in this process, as samples are few."""
        from fedfacet.clients.prediction import head_gradients  # late: see above

        return head_gradients(self.clients, model, samples)

    def unfairness_gradient(self, model: State, samples: NDArray[np.int64], *, measure: str, positive_class: int) -> State:
        """Return what ``clients.unfairness`` finds of a model; always in this process, as samples are few."""
        from fedfacet.clients.unfairness import unfairness_gradient  # late: see above

        return unfairness_gradient(self.clients, model, samples, measure=measure, positive_class=positive_class)

    def _predictions(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State) -> "Predictions":
        """Return the predictions of all splits, one after another."""
        from fedfacet.clients.prediction import predict  # late: see above

        return predict(self.clients, model, splits, memory)

    def close(self) -> None:
        """Release what ``setup`` took."""
