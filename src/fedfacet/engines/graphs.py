"""The engine for one GPU: each training step is recorded once, as a CUDA graph, and replayed. Exact."""

import logging
from collections.abc import Iterable, Iterator
from functools import partial

import torch

from fedfacet import state
from fedfacet.clients.recorded_steps import CannotRecordError
from fedfacet.clients.recorded_training import RecordedTraining, Recordings
from fedfacet.clients.trainer import Clients
from fedfacet.engines.base import Engine
from fedfacet.types import ClientTask, ClientUpdate, State

log = logging.getLogger(__name__)

_TOLERANCE = 1e-3  # relative, where algorithms need not be deterministic, so that a client does not come out the same twice


class GraphsEngine(Engine):
    """Train clients one after another by recorded steps.

    A step of a small or deep network waits for its kernels to be launched; a recorded step launches all of them at once. There
    is one recording per batch size, learning rate and kind of notes. The first two clients of a kind are also trained by the
    sequential engine: if the two updates differ, or if a step cannot be recorded, all clients are trained like that from there
    on, with a warning, and ``fallback_reason`` says why.
    """

    fallback_reason: str | None = None

    def setup(self, clients: Clients) -> None:
        """Take the clients."""
        super().setup(clients)
        self.fallback_reason = None
        self._recordings: Recordings | None = None

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update."""
        return map(self._train, tasks)

    def close(self) -> None:
        """Release the recordings."""
        self._recordings = None

    def _train(self, task: ClientTask) -> ClientUpdate:
        if self.fallback_reason is None:
            try:
                recordings = self._recordings = self._recordings or Recordings(self.clients)
                update = self.clients.train(task, partial(RecordedTraining, recordings))
                return self._checked(update, task) if recordings.is_new else update
            except CannotRecordError as error:
                self._fall_back(str(error))
        return self.clients.train(task)

    def _checked(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Return what the sequential engine makes of a client, after comparing it with what was recorded."""
        expected = self.clients.train(task)
        if not _same(update, expected):
            self._fall_back("Expected recorded steps to come out like others, but a client's update differs")
        return expected

    def _fall_back(self, reason: str) -> None:
        self.fallback_reason, self._recordings = reason, None
        log.warning("%s: engine=graphs trains the clients as engine=sequential does.", reason)


def _same(ours: ClientUpdate, theirs: ClientUpdate) -> bool:
    """Tell whether two updates are equal: bit for bit if torch's algorithms are deterministic."""
    pairs = [(getattr(ours, name), getattr(theirs, name)) for name in ("delta", "buffers", "extras", "memory")]
    if torch.are_deterministic_algorithms_enabled() or not torch.cuda.is_available():
        same_losses = repr(ours.metrics) == repr(theirs.metrics)
        return same_losses and all(state.digest(left) == state.digest(right) for left, right in pairs)
    return all(_near(left, right) for left, right in pairs)


def _near(left: State, right: State) -> bool:
    apart = {name: left[name].double() - right[name].double() for name in right}
    return left.keys() == right.keys() and state.norm(apart) <= _TOLERANCE * state.norm(right)
