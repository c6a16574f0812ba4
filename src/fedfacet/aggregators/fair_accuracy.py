"""Averaging that weighs clients by how accurate and how fair their models are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedfacet import state
from fedfacet.aggregators.base import MEASURES, Aggregator, compared_rates
from fedfacet.arguments import Choice, Number, Whole, Within
from fedfacet.confusion import accuracy_of
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class FairAccuracy(Aggregator):
    r"""Weigh clients by their model's accuracy over its unfairness, both on samples of the server's.

    .. math::
        r_k = \frac{Acc_k}{\max(\Delta F_k, \epsilon)}, \quad
        w \leftarrow w + \frac{\sum_k p_k r_k^\gamma \Delta_k}{\sum_k p_k r_k^\gamma}

    :math:`\Delta F_k` is the largest minus the smallest of the groups' rates that ``measure`` compares, in [0, 1], the larger
    difference of two for ``"equalized_odds"``; :math:`p_k` is as ``weighting`` says. The sums run over the ``top`` clients with
    the largest :math:`r_k`. A client for whom a group has no samples has no :math:`r_k` and does not count. If nobody has a
    positive one, the round is an average.

    Source: Kanaparthy et al., F3: Fair and Federated Face Attribute Classification with Heterogeneous Data, arXiv:2109.02351,
    as the thesis' section 6.2 describes it; neither the rule nor a default was checked against the paper.

    Deviations: ``power`` and ``least_gap`` are ours. Without a least difference, a model that takes everybody for one class is
    perfectly fair, and alone would count; 0.05 is one of 20 samples of a group.

    Args:
        top: how many clients count, 1 or larger; ``None`` for all.
        measure: whose rates are compared, ``"equal_opportunity"``, ``"equalized_odds"``, ``"demographic_parity"`` or
            ``"accuracy_parity"``.
        positive_class: of these rates.
        least_gap: epsilon in (0, 1].
        power: gamma, 0 or larger; 0 without ``top`` is FedAvg, and nothing is judged.
    """

    top: Annotated[int | None, Whole()] = None
    measure: Annotated[str, Choice(*MEASURES)] = "equal_opportunity"
    positive_class: Annotated[int, Whole(0)] = 1
    least_gap: Annotated[float, Within("(0, 1]")] = 0.05
    power: Annotated[float, Number("0 or larger, and finite")] = 1.0

    def judges(self) -> str | None:
        """Return that groups matter, if anything does."""
        return "groups" if self.power or self.top is not None else None

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        weighed = ((update, 1.0) for update in updates) if self.judges() is None else self._weighed(list(updates))
        averages_buffers = self.buffers == "average"
        moved = state.weighted_mean(
            (update.delta | update.buffers if averages_buffers else update.delta, self.weight(update) * factor)
            for update, factor in weighed
        )
        return server, state.add(model, moved)

    def _weighed(self, updates: list[ClientUpdate]) -> list[tuple[ClientUpdate, float]]:
        """Return the updates that count, in the order that they came, and how much."""
        ratios = {update.client_id: self._ratio(update) for update in updates}
        ranked = sorted((k for k, ratio in ratios.items() if ratio > 0), key=lambda k: (-ratios[k], k))[: self.top]
        if not ranked:
            return [(update, 1.0) for update in updates]
        # By the largest, so that no power overflows; one that underflows does not count.
        factors = {k: (ratios[k] / ratios[ranked[0]]) ** self.power for k in ranked}
        return [(update, factor) for update in updates if (factor := factors.get(update.client_id, 0.0)) > 0]

    def _ratio(self, update: ClientUpdate) -> float:
        """Return r_k; NaN where a group has no samples."""
        assert update.judged is not None  # a run without samples of the server's is refused
        counts_YAY = update.judged[1]
        rates_RA = compared_rates(counts_YAY, self.measure, self.positive_class)
        gap = (rates_RA.max(axis=1) - rates_RA.min(axis=1)).max()
        return float(accuracy_of(counts_YAY) / np.maximum(gap, self.least_gap))
