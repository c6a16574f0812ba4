"""A run that ends when its time on devices is over."""

from fedfacet.arguments import check_within
from fedfacet.termination.base import Termination
from fedfacet.types import RoundResult, ServerState


class SimulatedTimeTermination(Termination):
    """End a run with the round in which the simulated clock passes ``hours``.

    Args:
        hours: larger than 0.
    """

    needs_devices = True

    def __init__(self, *, hours: float = 24.0) -> None:
        check_within("termination.hours", hours, "(0, 1e9]")
        self.hours = hours

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Look at the clock."""
        hours = result.metrics["sim/clock"] / 3600
        return server, f"{hours:.4g} simulated hours have passed, {self.hours:g} were given" if hours >= self.hours else None
