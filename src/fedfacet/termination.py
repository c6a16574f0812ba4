"""What ends a run before all its rounds are done."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

from fedfacet.arguments import Declared, Whole, Within
from fedfacet.errors import ConfigError
from fedfacet.metrics.direction import lower_is_better
from fedfacet.records import RoundResult
from fedfacet.types import DEVICES, PAYMENTS, ServerState


class Termination(Declared, ABC):
    """Look at every round, and say whether it is the last.

    A termination is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out. A run never has more than ``federation.rounds`` rounds. The round that ends it is measured like
    the last one of any run, whatever ``every_n_rounds`` says.
    """

    option_group = "termination."

    requires: frozenset[str] = frozenset()
    """What some part must give: ``DEVICES`` for the simulated clock, ``PAYMENTS`` for what selectors pay."""

    def init(self) -> ServerState:
        """Return the state before the first round: plain data. A resume holds a saved state to its names and types."""
        return {}

    @abstractmethod
    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Return the next state, and in a few words why the run ends with this round; ``None`` where it goes on.

        Args:
            server: the state.
            result: of the round. Its metrics lack those that are due in another round.
        """

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure what it looks at.

        Args:
            metrics: of a round, all of them; NaN where not measured.

        Raises:
            ConfigError: naming what is missing.
        """


@dataclass(eq=False, kw_only=True)
class MetricTermination(Termination):
    """A termination by a metric of the validation set."""

    metric: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.metric.startswith(("val/", "personal_val/", "holdout/")):
            raise ValueError(
                f"Expected `termination.metric` to be one of the validation set, but got {self.metric!r}: the test set never "
                "chooses, and training does not say how well new samples are told, so take val/acc or val/acc_worst_group."
            )

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure the metric."""
        if self.metric not in metrics:
            name = type(self).__name__.removesuffix("Termination").lower()
            nearest = get_close_matches(self.metric, metrics, n=4, cutoff=0.0)
            raise ConfigError(
                f"Expected rounds to measure {self.metric!r} for `termination={name}`, but they measure {', '.join(nearest)} "
                "and so on: set `termination.metric` to one of the validation set, or add the callback that measures it."
            )


@dataclass(eq=False, kw_only=True)
class AccuracyTermination(MetricTermination):
    """End a run with the first measured round whose validation metric is ``target`` or more.

    Rounds in which the metric is not measured, or is NaN, do not end it.

    Args:
        metric: a column of ``metrics.csv`` of the validation set, such as ``val/acc`` or ``val/acc_worst_group``, of which more
            is better.
        target: in (0, 1].
    """

    metric: str = "val/acc"
    target: Annotated[float, Within("(0, 1]")] = 0.9

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Look at the metric, if it is due."""
        value = result.metrics.get(self.metric, math.nan)
        return server, f"{self.metric} is {value:.4g}, and {self.target:g} was the target" if value >= self.target else None


@dataclass(eq=False, kw_only=True)
class BudgetTermination(Termination):
    """End a run with the round in which the payments to clients come to ``payments`` or more.

    Payments are ``selector/spent`` of ``metrics.csv``, added up over the rounds. What a round costs is known only when its
    updates have arrived. So the last round is paid in full, and a run may cost up to a round more than the budget. A run whose
    selector pays nobody is refused.

    Source: thesis, table 4, "limited reward".

    Args:
        payments: larger than 0, in the unit of the selector's payments.
    """

    requires = frozenset({PAYMENTS})

    payments: Annotated[float, Within("(0, 1e300]")] = 100.0

    def init(self) -> ServerState:
        """Return what has been paid so far."""
        return {"spent": 0.0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Add the round's payments."""
        spent = server["spent"] + result.metrics["selector/spent"]
        reason = f"{spent:.4g} has been paid to clients, {self.payments:g} was the budget"
        return {"spent": spent}, reason if spent >= self.payments else None


@dataclass(eq=False, kw_only=True)
class EnergyTermination(Termination):
    """End a run with the round after which ``dead_share`` of all clients have less energy left than a round takes.

    Args:
        dead_share: in (0, 1].
    """

    requires = frozenset({DEVICES})

    dead_share: Annotated[float, Within("(0, 1]")] = 1.0

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Count the clients."""
        dead, everybody = int(result.metrics["sim/dead"]), result.num_clients
        ends = dead >= self.dead_share * everybody
        return server, f"{dead} of {everybody} clients have less energy than a round takes" if ends else None


@dataclass(eq=False, kw_only=True)
class PlateauTermination(MetricTermination):
    """End a run when its validation metric has not got better for some rounds.

    A round is better if its value exceeds the best so far by more than ``least_gain``. The best begins at minus infinity. Of a
    loss, or of another metric that is better when lower (``metrics.direction``), minus the value is compared.
    Rounds in which the metric is not measured count among those that wait, and cannot be better; NaN is no value either.

    Args:
        metric: a column of ``metrics.csv`` of the validation set, such as ``val/acc_worst_group`` or ``val/loss``.
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

    metric: str = "val/acc_worst_group"
    patience: Annotated[int, Whole()] = 20
    least_gain: Annotated[float, Within("[0, 1]")] = 0.0

    def init(self) -> ServerState:
        """Return that nothing was measured yet."""
        return {"best": -math.inf, "waited": 0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Compare with the best round so far."""
        lower = lower_is_better(self.metric)
        value = result.metrics.get(self.metric, math.nan) * (-1 if lower else 1)
        if value > server["best"] + self.least_gain:
            return {"best": float(value), "waited": 0}, None
        waited, best = server["waited"] + 1, -server["best"] if lower else server["best"]
        known = f"{self.metric} has not {'fallen below' if lower else 'exceeded'} {best:.4g} for {waited} rounds"
        reason = known if waited >= self.patience else None
        return {"best": server["best"], "waited": waited}, reason


@dataclass(eq=False, kw_only=True)
class SilenceTermination(Termination):
    """End a run after ``rounds`` rounds in a row in which no update arrived.

    Args:
        rounds: 1 or larger.
    """

    rounds: Annotated[int, Whole()] = 1

    def init(self) -> ServerState:
        """Return how many rounds in a row have been silent."""
        return {"silent": 0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Count the round."""
        silent = 0 if result.receipts else server["silent"] + 1
        return {"silent": silent}, f"no update arrived for {silent} rounds" if silent >= self.rounds else None


@dataclass(eq=False, kw_only=True)
class SimulatedTimeTermination(Termination):
    """End a run with the round in which the simulated clock passes ``hours``.

    Args:
        hours: larger than 0.
    """

    requires = frozenset({DEVICES})

    hours: Annotated[float, Within("(0, 1e9]")] = 24.0

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Look at the clock."""
        hours = result.metrics["sim/clock"] / 3600
        return server, f"{hours:.4g} simulated hours have passed, {self.hours:g} were given" if hours >= self.hours else None
