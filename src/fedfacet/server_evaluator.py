"""The server's samples, on which it judges models in a round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.engines.base import Engine
from fedfacet.types import ClientUpdate, ServerData, State


@dataclass(slots=True)
class ServerEvaluator:
    """What models say of the server's samples, and how many of these were passed through models for it.

    Args:
        engine: evaluates.
        server_data: the samples.
        model: that was sent in the round.
        num_samples: passed so far.
    """

    engine: Engine
    server_data: ServerData
    model: State
    num_samples: int = 0

    def judged(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Yield updates with what the model that was sent and each client's own say of the samples."""
        if arrived := list(updates):  # an engine trains or measures, not both at a time
            before = self.counts({})
        for update in arrived:
            yield replace(update, judged=(before, self.counts(update.delta | update.buffers)))

    def of(self, what: str) -> Callable[[State], NDArray[np.int64] | NDArray[np.float64]]:
        """Return what a selector is handed for what it has said that it ``judges``."""
        return self.gradients if what == "gradients" else self.counts

    def counts(self, change: State) -> NDArray[np.int64]:
        """Count what the model and a change say of the samples, by class, attribute value and predicted class, (Y, A, Y)."""
        confusion = self.engine.evaluate(self._changed(change), [self.server_data.samples])[0].confusion
        counts_YAY = confusion.reshape(confusion.shape[1], -1, confusion.shape[1])
        return counts_YAY if self.server_data.attributes else counts_YAY.sum(axis=1, keepdims=True)

    def gradients(self, change: State) -> NDArray[np.float64]:
        """Return the squared gradients of the head's rows by the model and a change, shape (Y,); see ``head_gradients``."""
        return self.engine.head_gradients(self._changed(change), self.server_data.samples)

    def unfairness_gradient(self, measure: str, positive_class: int) -> State:
        """Return the gradient of the sent model's unfairness, by trainable parameter; the samples are passed twice."""
        self.num_samples += 2 * len(self.server_data.samples)
        return self.engine.unfairness_gradient(
            self.model, self.server_data.samples, measure=measure, positive_class=positive_class
        )

    def _changed(self, change: State) -> State:
        self.num_samples += len(self.server_data.samples)
        return state.add(self.model, change)
