"""What clients' own modules give to ``self.log`` while they train, as means over samples and clients."""

import math
from collections.abc import Mapping, Sequence

from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.types import ClientTask, ClientUpdate


class LoggedValues(Mechanism):
    r"""Adds up what clients log, and makes a metric ``train/NAME`` of each name.

    .. math:: \frac{\sum_k \sum_b n_{kb} v_{kb}}{\sum_k \sum_b n_{kb}}

    Here :math:`v_{kb}` is the value of client k's batch b of :math:`n_{kb}` samples; a torchmetrics metric counts once, with
    all samples that the client saw. NaN where no client logged. A client sends two numbers for each name.

    Args:
        names: column of metrics -> the name that clients log, without the split.
    """

    rank = 70

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Add up an update's values; a client that sends none counts for nothing."""
        sums: dict[str, list[float]] = round.notes.setdefault("logged", {name: [0.0, 0] for name in self.names.values()})
        for name, total in sums.items():
            value, count = update.metrics.get(f"sum/{name}"), update.metrics.get(f"count/{name}")
            if _is_number(value) and _is_number(count) and count > 0:  # type: ignore[operator]
                total[0] += value  # type: ignore[operator]
                total[1] += count  # type: ignore[operator]
                round.queries.ledger.floats_up += 2
        return update

    def after(self, round: Round, new: FederationState) -> None:
        """Take the means."""
        sums: Mapping[str, Sequence[float]] = round.notes.get("logged", {})
        for column, name in self.names.items():
            total, count = sums.get(name, (0.0, 0))
            round.metrics[column] = total / count if count else float("nan")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
