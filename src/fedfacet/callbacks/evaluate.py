"""Group evaluation of the global model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.callbacks.base import Measurement
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import GroupCounts, group_key


@dataclass(eq=False, kw_only=True)
class Evaluate(Measurement):
    """Measure the global model on the validation and the test set, per group.

    Metrics, for ``val`` and ``test``: ``loss``, ``acc`` (average over samples), ``acc_adjusted`` (groups weighted by their
    training counts), ``acc_worst_group``, and ``acc_group/y0_a0`` and so on.

    Args:
        splits: name -> positions of samples in the data set.
        group_weights: training samples per group, in the order g = y * num_attributes + a.
        num_attributes: A.
    """

    name = "evaluate"

    splits: Mapping[str, NDArray[np.int64]]
    group_weights: Sequence[float]
    num_attributes: int

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        counts: Sequence[GroupCounts | None] = [None] * len(self.splits)
        if self.is_due(federation, round):
            counts = federation.engine.evaluate(federation.state.model, list(self.splits.values()))
        metrics: dict[str, float] = {}
        for name, count in zip(self.splits, counts, strict=True):
            metrics |= metrics_of(name, count, self.group_weights, self.num_attributes)
        return metrics


def metrics_of(split: str, counts: GroupCounts | None, group_weights: Sequence[float], num_attributes: int) -> dict[str, float]:
    """Return a model's metrics on a split, named ``<split>/...``; NaN where ``counts`` is ``None``; see ``Evaluate``."""
    counts = counts or GroupCounts(np.zeros((len(group_weights), 1), dtype=np.int64), 0.0)  # of no samples
    return {
        f"{split}/loss": counts.loss,
        f"{split}/acc": counts.average_accuracy,
        f"{split}/acc_adjusted": counts.adjusted_accuracy(group_weights),
        f"{split}/acc_worst_group": counts.worst_group_accuracy,
        **{
            f"{split}/acc_group/{group_key(group, num_attributes)}": accuracy
            for group, accuracy in enumerate(counts.accuracies)
        },
    }
