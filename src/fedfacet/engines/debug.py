"""The engine for finding out what goes wrong, and where."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.prediction import Predictions
from fedfacet.clients.queries.base import answer_query
from fedfacet.engines.base import Engine
from fedfacet.errors import BadUpdateError, EngineError
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State


class DebugEngine(Engine):
    """Run the clients one after another, several times slower than ``sequential``, and look at every step.

    - Deterministic algorithms only: what has none raises.
    - Anomaly detection: an exception in a backward pass shows the forward operation that it comes from, and NaN in a gradient
      raises there and then.
    - After every step the loss and all weights must be finite; the error names client, round, step and tensor. (Where the
      objective is not ``divisible``, after the last step only.)
    - Every client is trained twice and must come out the same, or something in it draws random numbers, or remembers, behind
      the back of the run.
    """

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update.

        Raises:
            BadUpdateError: at the first loss or weight that is not finite.
            EngineError: where a client does not come out the same twice.
        """
        for task in tasks:
            with _watched():
                update = self._step_by_step(task)
                again = self.clients.train(task)
            for name in ("delta", "buffers", "extras", "memory"):
                if state.digest(getattr(update, name)) != state.digest(getattr(again, name)):
                    raise EngineError(
                        f"Expected client {task.client_id} in round {task.round} to come out the same twice, but its {name} "
                        "differs: something draws random numbers, or remembers, behind the back of the run."
                    )
            yield update

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer, in the order of the tasks."""
        for task in tasks:
            with _watched():
                answer = answer_query(self.clients, query, task)
            yield answer

    def _predictions(self, model: State, splits: Sequence[NDArray[np.int64]], memory: State) -> Predictions:
        with _watched():
            return super()._predictions(model, splits, memory)

    def _step_by_step(self, task: ClientTask) -> ClientUpdate:
        clients = self.clients
        half: HalfTrained | None = None
        if clients.program_of(task.broadcast.model).divisible:
            for step in range(1, clients.num_steps(task)):
                part = clients.train_part(task, half, step)
                assert isinstance(part, HalfTrained)
                self._look_at(part.weights, part.loss_sum, step, task)
                half = part
        update = clients.train_part(task, half, None)
        assert isinstance(update, ClientUpdate)
        self._look_at(update.delta | update.buffers, update.metrics["loss_sum"], update.num_steps, task)
        return update

    def _look_at(self, tensors: State, loss_sum: float, num_steps: int, task: ClientTask) -> None:
        bad = [name for name, tensor in tensors.items() if not state.all_finite({name: tensor})]
        if not math.isfinite(loss_sum):
            bad.insert(0, "the loss")
        if bad:
            raise BadUpdateError(
                f"Expected finite numbers from client {task.client_id} in round {task.round}, but after step {num_steps} "
                f"{bad[0]} is not finite{f', and {len(bad) - 1} more' if len(bad) > 1 else ''}: lower the learning rate, or "
                "look at what this step's batch holds."
            )


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Turn on torch's own watchfulness, and put it back as it was."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.set_detect_anomaly(True):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
