"""A run that ends when no client sends an update any more."""

from fedfacet.arguments import check_whole
from fedfacet.termination.base import Termination
from fedfacet.types import RoundResult, ServerState


class SilenceTermination(Termination):
    """End a run after ``rounds`` rounds in a row in which no update arrived.

    Args:
        rounds: 1 or larger.
    """

    def __init__(self, *, rounds: int = 1) -> None:
        check_whole("termination.rounds", rounds)
        self.rounds = rounds

    def init(self) -> ServerState:
        """Return how many rounds in a row have been silent."""
        return {"silent": 0}

    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Count the round."""
        silent = 0 if result.receipts else server["silent"] + 1
        return {"silent": silent}, f"no update arrived for {silent} rounds" if silent >= self.rounds else None
