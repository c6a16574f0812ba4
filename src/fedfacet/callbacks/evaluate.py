"""Group evaluation of the global model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_whole
from fedfacet.callbacks.base import Callback
from fedfacet.metrics.group_counts import NAN, GroupCounts, group_key

if TYPE_CHECKING:
    from fedfacet.federation import Federation


class Evaluate(Callback):
    """Measure the global model on the validation and the test set, per group.

    Metrics, for ``val`` and ``test``: ``loss``, ``acc`` (average over samples), ``acc_adjusted`` (groups weighted by their
    training counts), ``acc_worst_group``, and ``acc_group/y0_a0`` and so on.

    Args:
        splits: name -> positions of samples in the data set.
        group_weights: training samples per group, in the order g = y * num_attributes + a.
        num_attributes: A.
        every_n_rounds: 1 or larger; the last round is measured always, the others in between are NaN.

    Raises:
        ValueError: if ``every_n_rounds`` is no whole number from 1 on.
    """

    def __init__(
        self,
        *,
        splits: Mapping[str, NDArray[np.int64]],
        group_weights: Sequence[float],
        num_attributes: int,
        every_n_rounds: int = 1,
    ) -> None:
        check_whole("callbacks.evaluate.every_n_rounds", every_n_rounds)
        self.splits = splits
        self.group_weights = tuple(group_weights)
        self.num_attributes = num_attributes
        self.every_n_rounds = every_n_rounds

    def measure(self, federation: "Federation", round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        due = round % self.every_n_rounds == 0 or round == federation.rounds
        if due:
            counts: Sequence[GroupCounts | None] = federation.engine.evaluate(
                federation.state.model, list(self.splits.values())
            )
        else:
            counts = [None] * len(self.splits)
        metrics: dict[str, float] = {}
        for name, count in zip(self.splits, counts, strict=True):
            metrics |= metrics_of(name, count, self.group_weights, self.num_attributes)
        return metrics


def metrics_of(split: str, counts: GroupCounts | None, group_weights: Sequence[float], num_attributes: int) -> dict[str, float]:
    """Return a model's metrics on a split by name, all of them NaN where nothing was counted.

    Args:
        split: its name, which the names of the metrics begin with.
        counts: what was counted.
        group_weights: of ``acc_adjusted``.
        num_attributes: A.
    """
    accuracies = counts.accuracies if counts else (NAN,) * len(group_weights)
    return {
        f"{split}/loss": counts.loss if counts else NAN,
        f"{split}/acc": counts.average_accuracy if counts else NAN,
        f"{split}/acc_adjusted": counts.adjusted_accuracy(group_weights) if counts else NAN,
        f"{split}/acc_worst_group": counts.worst_group_accuracy if counts else NAN,
        **{f"{split}/acc_group/{group_key(group, num_attributes)}": accuracy for group, accuracy in enumerate(accuracies)},
    }
