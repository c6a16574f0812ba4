"""Group evaluation of every client's own model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import numpy as np

from fedfacet.callbacks.evaluate import Evaluate, metrics_of
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import GroupCounts

_SPREAD = ("acc", "acc_worst_group", "acc_own")


@dataclass(eq=False, kw_only=True)
class EvaluateClients(Evaluate):
    r"""Measure the model that each client would use, global layers and its own, on the validation and the test set, per group.

    A metric is the mean over all K clients, :math:`\frac{1}{K} \sum_k m_k`. All models are measured on the same samples, so the
    mean of accuracies is the accuracy over all of them. ``acc_worst_group`` is the mean of the clients' worst groups, which may
    be different ones. A client that has not trained yet is measured with the global model.

    Metrics, for ``val`` and ``test``: those of ``Evaluate``; ``acc_own``, whose groups are weighted by the client's own
    training counts, so that it is the accuracy on samples like the client's own; and ``acc_min``, ``acc_max``,
    ``acc_worst_group_min`` and so on, of the worst and of the best client.

    Clients that never take part have ``held_out_clients/acc``, ``.../acc_worst_group`` and ``.../acc_own`` with their extremes,
    of the model that they would be sent.

    Args:
        data: the clients' own training samples per group are taken from it.
    """

    measures_held_out_clients: ClassVar[bool] = True

    data: FederatedData

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own_weights = [matrix.counts.ravel().tolist() for matrix in self.data.matrices]
        self._num_taking_part = len(self._own_weights)
        if self.data.held_out_clients is not None:
            never = self.data.matrices_of(self.data.held_out_clients.partition)
            self._own_weights += [matrix.counts.ravel().tolist() for matrix in never]

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' current models."""
        clients = []
        of_global: Sequence[GroupCounts | None] = []
        for client_id, own_weights in enumerate(self._own_weights):
            counts: Sequence[GroupCounts | None] = [None] * len(self.splits)
            if self.is_due(federation, round):
                sent = federation.sent(federation.state, client_id).model  # FedPAC's has a head for each
                memory = federation.state.memory.get(client_id)
                is_global = memory is None and sent is federation.state.model
                if not is_global or not of_global:
                    counts = federation.engine.evaluate(sent, list(self.splits.values()), memory)
                if is_global:  # whoever has never trained has the same
                    of_global = counts = of_global or counts
            clients.append(self._metrics(counts, own_weights))
        taking_part, never = clients[: self._num_taking_part], clients[self._num_taking_part :]
        metrics = {name: fmean(client[name] for client in taking_part) for name in clients[0]} | self._spread(taking_part)
        if never:
            spread = {f"{split}/{name}": fmean(client[f"{split}/{name}"] for client in never) for split, name in self._names}
            for name, value in (spread | self._spread(never)).items():
                split, _, rest = name.partition("/")
                metrics[f"{split}/held_out_clients/{rest}"] = value
        return metrics

    @property
    def _names(self) -> list[tuple[str, str]]:
        return [(split, name) for split in self.splits for name in _SPREAD]

    def _spread(self, clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return what the worst and the best of some clients have."""
        return {
            f"{split}/{name}_{extreme}": float(of([client[f"{split}/{name}"] for client in clients]))
            for split, name in self._names
            for extreme, of in (("min", np.min), ("max", np.max))  # unlike Python's own, NaN where any value is
        }

    def _metrics(self, counts: Sequence[GroupCounts | None], own_weights: Sequence[float]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for split, count in zip(self.splits, counts, strict=True):
            metrics |= metrics_of(split, count, self.group_weights, self.num_attributes)
            metrics[f"{split}/acc_own"] = count.adjusted_accuracy(own_weights) if count else float("nan")
        return metrics
