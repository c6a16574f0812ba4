"""A run that ends when it is accurate enough."""

import math
from collections.abc import Mapping
from difflib import get_close_matches

from fedfacet.arguments import check_within
from fedfacet.errors import ConfigError
from fedfacet.termination.base import Termination
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
        if not metric.startswith(("val/", "personal_val/")):
            raise ValueError(
                f"Expected `termination.metric` to be one of the validation set, but got {metric!r}: the test set never "
                "chooses, and training does not say how well new samples are told, so take val/acc or val/acc_worst_group."
            )
        check_within("termination.target", target, "(0, 1]")
        self.metric = metric
        self.target = target

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Look at the metric, if it is due."""
        value = result.metrics.get(self.metric, math.nan)
        return server, f"{self.metric} is {value:.4g}, and {self.target:g} was the target" if value >= self.target else None

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure the metric."""
        if self.metric not in metrics:
            nearest = get_close_matches(self.metric, metrics, n=4, cutoff=0.0)
            raise ConfigError(
                f"Expected rounds to measure {self.metric!r} for `termination=accuracy`, but they measure {', '.join(nearest)} "
                "and so on: set `termination.metric` to one of the validation set, or add the callback that measures it."
            )
