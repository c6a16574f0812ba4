"""What ends a run before all its rounds are done."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState, RoundResult
from fedfacet.round import result_of
from fedfacet.termination import Termination
from fedfacet.types import ServerState

log = logging.getLogger(__name__)


def stop_if_due(round: Round, measured: Mapping[str, float]) -> None:
    """Let mechanisms look at a round, once, and note down why it is the last if it is.

    Args:
        round: with what it has measured so far.
        measured: what has been measured besides.
    """
    federation = round.federation
    if not federation.chain.stop or "stop" in round.notes:
        return
    round.notes["stop"] = True
    result = replace(result_of(round), metrics={**round.metrics, **measured})
    reasons = [reason for stop in federation.chain.stop if (reason := stop(round, result)) is not None]
    federation.state = replace(federation.state, stopped="; ".join(reasons))
    if reasons:
        log.info("The run ends with round %d: %s.", round.number, federation.state.stopped)


class EndOfRun(Mechanism):
    """Sees to it that those are asked who may end the run, where no callback measures the round."""

    rank = 14

    def after(self, round: Round, new: FederationState) -> None:
        """Ask them."""
        stop_if_due(round, {})


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
