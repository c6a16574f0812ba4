"""The clients' learning rate from round to round."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.errors import ConfigError
from fedfacet.types import ServerState


class Scheduler(ABC):
    """By what the clients' learning rate is multiplied in a round.

    A scheduler is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out. The factor goes to a client with its order, and multiplies the learning rate of every parameter
    group of its optimizer, which starts anew in every round; within a round the learning rate is constant. Queries that train
    something besides the client's own model use the unscheduled learning rate.
    """

    def init(self) -> ServerState:
        """Return the state before the first round: plain data. A resume holds a saved state to its names and types."""
        return {}

    @abstractmethod
    def factor(self, server: ServerState, round: int) -> float:
        """Return the factor of a round, counted from 1."""

    def observe(self, server: ServerState, metrics: Mapping[str, float]) -> ServerState:
        """Return the next state, learnt from what a finished round measured."""
        return server


def factor_of(scheduler: Scheduler, server: ServerState, round: int) -> float:
    """Ask for the factor of a round.

    Raises:
        ValueError: if it is negative, which would climb up the loss, or not finite.
    """
    factor = scheduler.factor(server, round)
    check_within(f"{type(scheduler).__name__}.factor", factor, "[0, inf)")
    return factor


class TorchScheduler(Scheduler):
    """What a scheduler of torch makes of a learning rate of 1, round by round; a function of the round only.

    Args:
        kind: of scheduler. It must not look at anything but how often it was stepped.
        settings: what it takes besides an optimizer.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> scheduler = TorchScheduler(StepLR, step_size=2, gamma=0.5)
        >>> [scheduler.factor({}, round) for round in (1, 2, 3, 5)]
        [1.0, 1.0, 0.5, 0.25]
    """

    def __init__(self, kind: type[LRScheduler], **settings: Any) -> None:
        self._scheduler = kind(unit_optimizer(), **settings)
        self._scheduler.optimizer.step()  # of nothing, or torch warns that the scheduler came first
        self._known = [self._now()]

    def factor(self, server: ServerState, round: int) -> float:
        """Return the factor of a round, counted from 1."""
        while len(self._known) < round:
            self._scheduler.step()
            self._known.append(self._now())
        return self._known[round - 1]

    def _now(self) -> float:
        return float(self._scheduler.optimizer.param_groups[0]["lr"])


def unit_optimizer() -> Optimizer:
    """Return an optimizer of one parameter with a learning rate of 1, for a scheduler to act on."""
    return SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)


class CosineScheduler(TorchScheduler):
    r"""Have the learning rate fall along half a cosine: torch's ``CosineAnnealingLR``.

    In round t of R it is multiplied by :math:`m + (1 - m) (1 + \cos(\pi (t - 1) / R)) / 2`.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5, without restarts.

    Args:
        rounds: R, of the whole run.
        min_factor: m in [0, 1).
    """

    def __init__(self, *, rounds: int, min_factor: float = 0.0) -> None:
        check_whole("scheduler.rounds", rounds)
        check_within("scheduler.min_factor", min_factor, "[0, 1)")
        super().__init__(CosineAnnealingLR, T_max=rounds, eta_min=min_factor)


class ExponentialScheduler(TorchScheduler):
    r"""Multiply the learning rate by :math:`d^{t - 1}` in round t: torch's ``ExponentialLR``.

    Args:
        decay: d in (0, 1].
    """

    def __init__(self, *, decay: float = 0.99) -> None:
        check_within("scheduler.decay", decay, "(0, 1]")
        super().__init__(ExponentialLR, gamma=decay)


class MultiStepScheduler(TorchScheduler):
    """Multiply the learning rate by ``decay`` after each round that ``milestones`` names: torch's ``MultiStepLR``.

    Args:
        milestones: ascending; the last rounds with a learning rate before it falls.
        decay: in (0, 1].
    """

    def __init__(self, *, milestones: Sequence[int] = (100, 150), decay: float = 0.1) -> None:
        for milestone in milestones:
            check_whole("scheduler.milestones", milestone)
        if list(milestones) != sorted(set(milestones)):
            raise ValueError(f"Expected `scheduler.milestones` to ascend, but got {list(milestones)}.")
        check_within("scheduler.decay", decay, "(0, 1]")
        super().__init__(MultiStepLR, milestones=milestones, gamma=decay)


class OneCycleScheduler(TorchScheduler):
    """Have the learning rate rise to what ``optimizer.lr`` says, then fall far below its start: torch's ``OneCycleLR``.

    Source: Smith and Topin, Super-Convergence, arXiv:1708.07120.

    Deviation: momentum does not cycle; it is reset with the optimizer in every round.

    Args:
        rounds: of the whole run.
        rising: the part of the rounds in which it rises, in (0, 1).
        start_divisor: it starts at the peak divided by this, larger than 1.
        end_divisor: and ends at its start divided by this, larger than 1.
        anneal: ``"cos"`` or ``"linear"``.
    """

    def __init__(
        self,
        *,
        rounds: int,
        rising: float = 0.3,
        start_divisor: float = 25.0,
        end_divisor: float = 10_000.0,
        anneal: str = "cos",
    ) -> None:
        check_whole("scheduler.rounds", rounds)
        check_within("scheduler.rising", rising, "(0, 1)")
        for name, value in (("start_divisor", start_divisor), ("end_divisor", end_divisor)):
            if not value > 1:
                raise ValueError(f"Expected `scheduler.{name}` to be larger than 1, but got {value}.")
        check_choice("scheduler.anneal", anneal, ("cos", "linear"))
        if rising * rounds == 1:  # torch would divide zero by zero
            raise ValueError(
                f"Expected a rise of more or less than a single round, but got {rising} of {rounds} rounds: change "
                "`scheduler.rising` a little."
            )
        self._rounds = rounds
        super().__init__(
            OneCycleLR,
            max_lr=1.0,
            total_steps=rounds,
            pct_start=rising,
            anneal_strategy=anneal,
            cycle_momentum=False,
            div_factor=start_divisor,
            final_div_factor=end_divisor,
        )

    def factor(self, server: ServerState, round: int) -> float:
        """Return the factor of a round; of one after the last, the last one's."""
        return super().factor(server, min(round, self._rounds))


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


class StepScheduler(TorchScheduler):
    r"""Multiply the learning rate by :math:`d^{\lfloor (t - 1) / n \rfloor}` in round t: torch's ``StepLR``.

    Args:
        every_n_rounds: n, 1 or larger.
        decay: d in (0, 1].
    """

    def __init__(self, *, every_n_rounds: int = 50, decay: float = 0.5) -> None:
        check_whole("scheduler.every_n_rounds", every_n_rounds)
        check_within("scheduler.decay", decay, "(0, 1]")
        super().__init__(StepLR, step_size=every_n_rounds, gamma=decay)


class WarmRestartsScheduler(TorchScheduler):
    """Have the learning rate fall along half a cosine and start again: torch's ``CosineAnnealingWarmRestarts``.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5.

    Args:
        first_cycle: rounds until the first restart, 1 or larger.
        growth: by how much each cycle is longer than the last, a whole number, 1 or larger.
        min_factor: of the learning rate, at the end of a cycle, in [0, 1).
    """

    def __init__(self, *, first_cycle: int = 50, growth: int = 1, min_factor: float = 0.0) -> None:
        check_whole("scheduler.first_cycle", first_cycle)
        check_whole("scheduler.growth", growth)
        check_within("scheduler.min_factor", min_factor, "[0, 1)")
        super().__init__(CosineAnnealingWarmRestarts, T_0=first_cycle, T_mult=growth, eta_min=min_factor)
