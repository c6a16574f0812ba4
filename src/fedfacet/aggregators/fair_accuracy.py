"""F3's averages of the clients whose models are fair and accurate."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fedfacet import state
from fedfacet.aggregators.base import MEASURES, Aggregator, compared_rates
from fedfacet.arguments import Choice, Number, Whole, Within
from fedfacet.confusion import accuracy_of
from fedfacet.types import ClientUpdate, ServerState, State

RULES = ("fair_acc_avg", "fair_avg", "fair_best", "weighted")

_LEAST = 1e-12
"""A gap of 0 counts as this one, so that a ratio is finite and accuracy ranks the models without a gap."""


@dataclass(eq=False, kw_only=True)
class FairAccuracy(Aggregator):
    r"""Average the models that are the fairest, or the most accurate for their unfairness, on samples of the server's.

    With :math:`Acc_k` a client's accuracy there and :math:`\Delta F_k` its unfairness, the next model is

    .. math:: w \leftarrow w + \frac{\sum_{k \in F} p_k \Delta_k}{\sum_{k \in F} p_k}

    over the clients F that ``rule`` takes, with :math:`p_k` as ``weighting`` says:

    - ``"fair_acc_avg"``: the part ``share`` of the cohort with the largest :math:`Acc_k / \Delta F_k`;
    - ``"fair_avg"``: the part ``share`` with the smallest :math:`\Delta F_k`, of equal ones the most accurate;
    - ``"fair_best"``: the one with the smallest;
    - ``"weighted"``: all, with :math:`p_k (Acc_k / \Delta F_k)^\gamma` for :math:`p_k`.

    :math:`\Delta F_k` is the largest minus the smallest of the groups' rates that ``measure`` compares, in [0, 1], the larger
    difference of two for ``"equalized_odds"``. A client for whom a group has no samples does not count. Where nobody counts,
    and with ``"weighted"`` where every accuracy is 0, the round is an average.

    Source: Kanaparthy et al., F3: Fair and Federated Face Attribute Classification with Heterogeneous Data, PAKDD 2023,
    arXiv:2109.02351, section 3.1 and equations 2 and 3; ``share`` is the paper's alpha, 10 % in its section 4. FairGrad, of
    section 3.2, is ``method=fair_grad``.

    Deviations: the paper measures from the rate of all samples to the largest error rate of a group. The authors' code takes
    the difference between two groups, as here. On equally large groups that is twice the paper's, so the order is the same. The
    paper's accuracy parity adds up two differences; here it compares accuracies. Demographic parity is ours. The server's
    samples are fewer than the paper's, 10 to 20 % of all data: ``server_data.samples_per_cell``. The number of clients is
    rounded up. The paper stops early on the server's samples; here validation chooses the round. ``"weighted"``, ``power`` and
    ``least_gap`` are ours: a model that predicts one class for all is perfectly fair, and a least gap limits what that is
    worth.

    Args:
        rule: one of the four above.
        share: alpha in (0, 1], of the clients whose updates came; one at least.
        measure: whose rates are compared, ``"equal_opportunity"``, ``"equalized_odds"``, ``"demographic_parity"`` or
            ``"accuracy_parity"``.
        positive_class: of these rates.
        least_gap: smaller gaps count as this one, in [0, 1]; 0.05 is one of 20 samples of a group.
        power: gamma, 0 or larger, of ``"weighted"``; 0 is FedAvg, and nothing is judged.
    """

    rule: Annotated[str, Choice(*RULES)] = "fair_acc_avg"
    share: Annotated[float, Within("(0, 1]")] = 0.1
    measure: Annotated[str, Choice(*MEASURES)] = "equalized_odds"
    positive_class: Annotated[int, Whole(0)] = 1
    least_gap: Annotated[float, Within("[0, 1]")] = 0.0
    power: Annotated[float, Number("0 or larger, and finite")] = 1.0
    weighting: str = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power != 1 and self.rule != "weighted":
            raise ValueError(f"`power` is {self.power:g}, which rule={self.rule} does not use: choose rule=weighted, or 1.")

    def judges(self) -> str | None:
        """Return that groups matter, if anything does."""
        return "groups" if self.power else None

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        weighed = ((update, 1.0) for update in updates) if self.judges() is None else self._weighed(list(updates))
        moved = state.weighted_mean((self.sent(update), self.weight(update) * factor) for update, factor in weighed)
        return server, state.add(model, moved)

    def _weighed(self, updates: list[ClientUpdate]) -> list[tuple[ClientUpdate, float]]:
        """Return the updates that count, in the order that they came, and how much."""
        judged = {update.client_id: self._judged(update) for update in updates}
        known = {k: (accuracy, gap) for k, (accuracy, gap) in judged.items() if not math.isnan(gap)}
        factors = self._by_ratio(known) if self.rule == "weighted" else dict.fromkeys(self._best(known, len(updates)), 1.0)
        if not factors:
            return [(update, 1.0) for update in updates]
        return [(update, factor) for update in updates if (factor := factors.get(update.client_id, 0.0)) > 0]

    def _best(self, known: dict[int, tuple[float, float]], number: int) -> list[int]:
        """Return the clients that the rule takes, of those with a gap; ties go to the first."""

        def key(k: int) -> tuple[float, float, int]:
            accuracy, gap = known[k]
            return round(-accuracy / gap if self.rule == "fair_acc_avg" else gap, 9), -accuracy, k

        # Rounding errors must not break a tie, nor make 4 of a tenth of 30.
        ranked = sorted(known, key=key)
        return ranked[: 1 if self.rule == "fair_best" else max(1, math.ceil(self.share * number - 1e-9))]

    def _by_ratio(self, known: dict[int, tuple[float, float]]) -> dict[int, float]:
        """Return each client's ratio to its power, over the largest, so that no power overflows."""
        ratios = {k: accuracy / gap for k, (accuracy, gap) in known.items() if accuracy > 0}
        largest = max(ratios.values(), default=1.0)
        return {k: (ratio / largest) ** self.power for k, ratio in ratios.items()}

    def _judged(self, update: ClientUpdate) -> tuple[float, float]:
        """Return a client's accuracy and gap; the gap is NaN where a group has no samples."""
        assert update.judged is not None  # a run without samples of the server's is refused
        counts_YAY = update.judged[1]
        rates_RA = compared_rates(counts_YAY, self.measure, self.positive_class)
        gap = float((rates_RA.max(axis=1) - rates_RA.min(axis=1)).max())
        return float(accuracy_of(counts_YAY)), gap if math.isnan(gap) else max(gap, self.least_gap, _LEAST)
