"""A learning rate that falls by a factor at given rounds."""

from collections.abc import Sequence

from torch.optim.lr_scheduler import MultiStepLR

from fedfacet.arguments import check_whole, check_within
from fedfacet.schedulers.base import TorchScheduler


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
