"""A learning rate that falls by a factor every round."""

from torch.optim.lr_scheduler import ExponentialLR

from fedfacet.arguments import check_within
from fedfacet.schedulers.base import Scheduler, TorchFactors
from fedfacet.types import ServerState


class ExponentialScheduler(Scheduler):
    r"""Multiply the learning rate by :math:`d^{t - 1}` in round t: torch's ``ExponentialLR``.

    Args:
        decay: d in (0, 1].

    Raises:
        ValueError: if ``decay`` is out of range.
    """

    def __init__(self, *, decay: float = 0.99) -> None:
        check_within("scheduler.decay", decay, "(0, 1]")
        self._factors = TorchFactors(lambda optimizer: ExponentialLR(optimizer, gamma=decay))

    def factor(self, server: ServerState, round: int) -> float:
        """Return the factor of a round."""
        return self._factors(round)
