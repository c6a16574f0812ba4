"""Averaging for clients that weight samples so that class and attribute look independent in the whole federation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import GROUP_WEIGHTS, Broadcast, ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class GlobalReweighing(Aggregator):
    r"""FedAvg whose clients weight their samples by :math:`P(y) P(a) / P(y, a)` of the whole federation.

    Every available client is asked once for how many samples it has of each class with each attribute value. The server adds
    the answers up, and sends the weights of the sum along with the model (``objective=group_weighted``). Where class and
    attribute are independent in the federation, all weights are 1 and the run is FedAvg's.

    Source: the global reweighing of Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447, with noise on the
    counts if ``epsilon`` is set.

    Args:
        interaction_matrix: what clients are asked for.
    """

    provides = frozenset({GROUP_WEIGHTS})

    interaction_matrix: Query

    def report(self) -> Query:
        """Return the question for the counts."""
        return self.interaction_matrix

    def init(self, facts: Facts) -> ServerState:
        """Return weights that nobody has yet."""
        return {"weights": torch.zeros(0, 0)}

    def reporters(self, trains: Sequence[int], available: Sequence[int]) -> Sequence[int]:
        """Return all who are available."""
        return available

    def prepare(self, server: ServerState, reports: Mapping[int, Any]) -> ServerState:
        """Return the weights of all counts that were disclosed so far."""
        pooled = np.sum([np.asarray(counts, dtype=np.float64) for counts in reports.values()], axis=0)
        return {"weights": torch.from_numpy(InteractionMatrix(pooled).independence_weights).float()}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the weights."""
        return Broadcast(model, {GROUP_WEIGHTS: server["weights"]} if server["weights"].numel() else {})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the averaged model."""
        delta, buffers = self.average(updates)
        return server, state.add(model, {**delta, **buffers})
