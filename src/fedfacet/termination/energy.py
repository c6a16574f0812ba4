"""A run that ends when batteries are empty."""

from fedfacet.arguments import check_within
from fedfacet.termination.base import Termination
from fedfacet.types import RoundResult, ServerState


class EnergyTermination(Termination):
    """End a run with the round after which ``dead_share`` of all clients have less energy left than a round takes.

    Args:
        dead_share: in (0, 1].
    """

    needs_devices = True

    def __init__(self, *, dead_share: float = 1.0) -> None:
        check_within("termination.dead_share", dead_share, "(0, 1]")
        self.dead_share = dead_share

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Count the clients."""
        dead, everybody = int(result.metrics["sim/dead"]), result.num_clients
        ends = dead >= self.dead_share * everybody
        return server, f"{dead} of {everybody} clients have less energy than a round takes" if ends else None
