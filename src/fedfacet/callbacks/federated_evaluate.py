"""Group evaluation of the global model by the clients themselves, on what they hold out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedfacet.callbacks.base import Measurement
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import NAN, GroupCounts, group_key
from fedfacet.types import Query


@dataclass(eq=False, kw_only=True)
class FederatedEvaluate(Measurement):
    r"""Have all available clients count how many of their held-out samples the new global model has right, per group.

    The server adds counts up, :math:`c_g = \sum_k c_{kg}` of :math:`n_g = \sum_k n_{kg}`, so a client weighs what it holds out.
    Metrics: ``holdout/acc`` (average over samples), ``holdout/acc_balanced`` (mean of the groups that have samples),
    ``holdout/acc_worst_group``, ``holdout/acc_group/y0_a0`` and so on, NaN for a group of which nobody holds a sample;
    ``holdout/num_samples``, and ``holdout/num_clients``, who hold out some of these; ``holdout/num_away``, the clients that
    were not available, or did not answer in time or with counts: their samples are missing.

    Each is sent the model that it would be sent next, and measures it with the layers that are its own. The question counts as
    every question does, in ``comm/query_...``, ``disclosures.csv`` and under ``disclosure`` and ``privacy``, except that
    simulated ``devices`` take no time for it. Where there is no validation set, the best round is chosen by these metrics; its
    accuracy is then that of a choice, and too high for new samples.

    Args:
        holdout_counts: the question.
        num_classes: Y.
        num_attributes: A.
        num_holding_out: how many clients hold out any sample.

    Raises:
        FedFacetError: if nobody does.
    """

    name = "federated_evaluate"

    holdout_counts: Query
    num_classes: int
    num_attributes: int
    num_holding_out: int
    _answers: Mapping[int, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_holding_out:
            raise FedFacetError(
                "Expected clients that hold out some of their samples for callbacks.federated_evaluate, but nobody does: set "
                "partition.local_holdout=0.2 (of real sites `holdout: 0.2` in client.yaml), or leave the callback out."
            )

    def question(self) -> Query:
        """Return ``holdout_counts``."""
        return self.holdout_counts

    def on_answers(self, federation: Federation, answers: Mapping[int, Any]) -> None:
        """Keep the answers for ``measure``."""
        self._answers = answers

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        answers, self._answers = self._answers, None
        counts = [np.array(answer).astype(np.int64) for answer in (answers or {}).values()]
        nothing = np.zeros((2, self.num_classes, self.num_attributes), np.int64)
        total = GroupCounts.of_hits(*np.sum([nothing, *counts], axis=0))
        measured = {
            "num_samples": sum(total.total),
            "num_clients": sum(bool(count.any()) for count in counts),
            "num_away": federation.num_clients - len(counts),
        }
        return {
            "holdout/acc": total.average_accuracy,
            "holdout/acc_balanced": total.adjusted_accuracy([float(number > 0) for number in total.total]),
            "holdout/acc_worst_group": total.worst_group_accuracy,
            **{
                f"holdout/acc_group/{group_key(group, self.num_attributes)}": accuracy
                for group, accuracy in enumerate(total.accuracies)
            },
            **{f"holdout/{name}": NAN if answers is None else value for name, value in measured.items()},
        }
