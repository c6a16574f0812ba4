"""Clients that hold parts of the model."""

from dataclasses import dataclass, replace
from functools import partial

from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.submodels.parts import Parts
from fedfacet.types import ClientTask


@dataclass(frozen=True, eq=False)
class Submodels(Mechanism):
    """Sends each client its part of the model, and averages each entry over those who hold it."""

    parts: Parts

    rank = 60

    def outgoing(self, before: FederationState, task: ClientTask) -> ClientTask:
        """Return an order on the client's part; a client that never takes part is sent all of the model."""
        if task.client_id >= len(self.parts.num_samples_K):
            return task
        model = self.parts.cut(task.broadcast.model, task.client_id, before.round + 1)
        return replace(task, broadcast=replace(task.broadcast, model=model))

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Fill updates up to the whole model; entries that no client held keep their values."""
        return partial(self.parts.aggregate, inner, round.number)
