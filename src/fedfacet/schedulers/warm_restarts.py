"""A learning rate that falls along half a cosine, again and again."""

from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from fedfacet.arguments import check_whole, check_within
from fedfacet.schedulers.base import TorchScheduler


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
