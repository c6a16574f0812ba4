"""A learning rate that falls along half a cosine."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from fedfacet.arguments import check_whole, check_within
from fedfacet.schedulers.base import TorchScheduler


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
