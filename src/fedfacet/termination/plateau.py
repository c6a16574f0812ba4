"""A run that ends when it has stopped getting better: early stopping."""

import math
from collections.abc import Mapping

from fedfacet.arguments import check_whole, check_within
from fedfacet.termination.base import Termination, check_measured, check_validation
from fedfacet.types import RoundResult, ServerState


class PlateauTermination(Termination):
    """End a run when its validation metric has not grown for some rounds.

    A round is better if its value exceeds the best so far by more than ``least_gain``; the best begins at minus infinity.
    Rounds in which the metric is not measured count among those that wait, and cannot be better; NaN is no value either.

    Args:
        metric: a column of ``metrics.csv`` of the validation set, such as ``val/acc`` or ``val/acc_worst_group``, of which more
            is better.
        patience: how many rounds after the best one the run goes on, 1 or larger.
        least_gain: 0 or larger, at most 1.

    Example:
        >>> from types import SimpleNamespace
        >>> termination, server = PlateauTermination(metric="val/acc", patience=2), {"best": -math.inf, "waited": 0}
        >>> for accuracy in (0.5, 0.6, 0.6, 0.55):
        ...     server, reason = termination.observe(server, SimpleNamespace(metrics={"val/acc": accuracy}))
        >>> reason
        'val/acc has not exceeded 0.6 for 2 rounds'
    """

    def __init__(self, *, metric: str = "val/acc_worst_group", patience: int = 20, least_gain: float = 0.0) -> None:
        check_validation(metric)
        check_whole("termination.patience", patience)
        check_within("termination.least_gain", least_gain, "[0, 1]")
        self.metric = metric
        self.patience = patience
        self.least_gain = least_gain

    def init(self) -> ServerState:
        """Return that nothing was measured yet."""
        return {"best": -math.inf, "waited": 0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Compare with the best round so far."""
        value = result.metrics.get(self.metric, math.nan)
        if value > server["best"] + self.least_gain:
            return {"best": float(value), "waited": 0}, None
        waited = server["waited"] + 1
        ends = waited >= self.patience
        reason = f"{self.metric} has not exceeded {server['best']:.4g} for {waited} rounds" if ends else None
        return {"best": server["best"], "waited": waited}, reason

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure the metric."""
        check_measured(self.metric, metrics, "termination=plateau")
