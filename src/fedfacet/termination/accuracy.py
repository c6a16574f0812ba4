"""A run that ends when it is accurate enough."""

import math
from collections.abc import Mapping

from fedfacet.arguments import check_within
from fedfacet.termination.base import Termination, check_measured, check_validation
from fedfacet.types import RoundResult, ServerState


class AccuracyTermination(Termination):
    """End a run with the first measured round whose validation metric is ``target`` or more.

    Rounds in which the metric is not measured, or is NaN, do not end it.

    Args:
        metric: a column of ``metrics.csv`` of the validation set, such as ``val/acc`` or ``val/acc_worst_group``, of which more
            is better.
        target: in (0, 1].
    """

    def __init__(self, *, metric: str = "val/acc", target: float = 0.9) -> None:
        check_validation(metric)
        check_within("termination.target", target, "(0, 1]")
        self.metric = metric
        self.target = target

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Look at the metric, if it is due."""
        value = result.metrics.get(self.metric, math.nan)
        return server, f"{self.metric} is {value:.4g}, and {self.target:g} was the target" if value >= self.target else None

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure the metric."""
        check_measured(self.metric, metrics, "termination=accuracy")
