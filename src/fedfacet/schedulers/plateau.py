"""A learning rate that falls when a measured value no longer gets better."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial

from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.errors import ConfigError
from fedfacet.schedulers.base import Scheduler, unit_optimizer
from fedfacet.types import ServerState

_KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class PlateauScheduler(Scheduler):
    """Multiply the learning rate by ``decay`` when a metric has not got better for a while: torch's ``ReduceLROnPlateau``.

    Rounds in which the metric is not measured do not count. What it has seen is part of a run's saved state.

    Args:
        metric: a column of ``metrics.csv``, such as ``val/loss``; never one of the test set.
        mode: ``"min"`` where smaller is better, or ``"max"``.
        decay: in (0, 1).
        patience: measured rounds without getting better that are waited for, 0 or larger.
        threshold: what counts as better, relative to the best value, 0 or larger.
        cooldown: measured rounds after a fall that do not count, 0 or larger.
        min_factor: of the learning rate, below which it does not fall, in [0, 1).
    """

    def __init__(
        self,
        *,
        metric: str = "val/loss",
        mode: str = "min",
        decay: float = 0.5,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_factor: float = 0.0,
    ) -> None:
        if "test/" in metric:  # or `personal_test/`
            raise ValueError(
                f"Expected `scheduler.metric` to be one of training or validation, but got {metric!r}: the test set never "
                "chooses, so take val/loss."
            )
        check_choice("scheduler.mode", mode, ("min", "max"))
        check_within("scheduler.decay", decay, "(0, 1]")
        if decay == 1:
            raise ValueError("Expected `scheduler.decay` to be smaller than 1, but got 1: choose `scheduler=none`.")
        check_whole("scheduler.patience", patience, 0)
        check_whole("scheduler.cooldown", cooldown, 0)
        check_within("scheduler.min_factor", min_factor, "[0, 1)")
        if not threshold >= 0:
            raise ValueError(f"Expected `scheduler.threshold` to be 0 or larger, but got {threshold}.")
        self.metric = metric
        self._make = partial(
            ReduceLROnPlateau,
            mode=mode,  # type: ignore[arg-type]
            factor=decay,
            patience=patience,
            threshold=threshold,
            cooldown=cooldown,
            min_lr=min_factor,
            eps=0.0,
        )

    def init(self) -> ServerState:
        """Return what was seen, which is nothing, and the factor that it has led to."""
        return _state_of(self._make(unit_optimizer()))

    def factor(self, server: ServerState, round: int) -> float:
        """Return the factor that the rounds observed so far have led to."""
        return float(server["factor"])

    def observe(self, server: ServerState, metrics: Mapping[str, float]) -> ServerState:
        """Look at a finished round.

        Raises:
            ConfigError: if its metrics lack the one that is asked for.
        """
        if self.metric not in metrics:
            nearest = get_close_matches(self.metric, metrics, n=4, cutoff=0.0)
            more = f" and {len(metrics) - len(nearest)} more" if len(metrics) > len(nearest) else ""
            raise ConfigError(
                f"Expected every round to measure {self.metric!r} for `scheduler=plateau`, but got {', '.join(nearest)}{more}: "
                "set `scheduler.metric` to one of them."
            )
        value = metrics[self.metric]
        if value != value:  # not measured
            return server
        scheduler = self._make(unit_optimizer())
        scheduler.load_state_dict({name: server[name] for name in _KEPT})
        scheduler.optimizer.param_groups[0]["lr"] = server["factor"]
        scheduler.step(value)
        return _state_of(scheduler)


def _state_of(scheduler: ReduceLROnPlateau) -> ServerState:
    seen = scheduler.state_dict()
    return {"factor": float(scheduler.optimizer.param_groups[0]["lr"]), **{name: seen[name] for name in _KEPT}}
