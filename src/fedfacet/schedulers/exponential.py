"""A learning rate that falls by a factor every round."""

from torch.optim.lr_scheduler import ExponentialLR

from fedfacet.arguments import check_within
from fedfacet.schedulers.base import TorchScheduler


class ExponentialScheduler(TorchScheduler):
    r"""Multiply the learning rate by :math:`d^{t - 1}` in round t: torch's ``ExponentialLR``.

    Args:
        decay: d in (0, 1].
    """

    def __init__(self, *, decay: float = 0.99) -> None:
        check_within("scheduler.decay", decay, "(0, 1]")
        super().__init__(ExponentialLR, gamma=decay)
