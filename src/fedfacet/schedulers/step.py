"""A learning rate that falls by a factor every so many rounds."""

from torch.optim.lr_scheduler import StepLR

from fedfacet.arguments import check_whole, check_within
from fedfacet.schedulers.base import TorchScheduler


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
