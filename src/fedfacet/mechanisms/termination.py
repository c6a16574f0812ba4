"""What ends a run before all its rounds are done."""

from dataclasses import dataclass

from fedfacet.round import Mechanism, Round
from fedfacet.termination import Termination
from fedfacet.types import FederationState, RoundResult, ServerState


@dataclass(frozen=True, eq=False)
class EarlyStop(Mechanism):
    """Has a termination look at every round, and ends the run with the first for which it gives a reason."""

    termination: Termination

    slot = "termination"
    rank = 12

    def init(self) -> ServerState:
        """Return the termination's first state."""
        return self.termination.init()

    def stop(self, round: Round, result: RoundResult) -> str | None:
        """Return the termination's reason."""
        round.notes[self.slot], reason = self.termination.observe(round.before.slot(self.slot), result)
        return reason

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Return the termination's next state; raise ``ConfigError`` if the round does not measure what it looks at."""
        self.termination.check(round.metrics)
        learnt: ServerState = round.notes[self.slot]
        return learnt
