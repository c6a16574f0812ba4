"""The contract of a learning-rate scheduler."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedfacet.arguments import check_within
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
    """What a scheduler of torch makes of a learning rate of 1, round by round; a function of the round alone.

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
