"""A learning rate that rises and then falls."""

from torch.optim.lr_scheduler import OneCycleLR

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.schedulers.base import TorchScheduler
from fedfacet.types import ServerState


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
