"""Rounds that take time and energy on simulated devices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedfacet.clock import Clock
from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.types import ServerState


@dataclass(frozen=True, eq=False)
class SimulatedDevices(Mechanism):
    """Says who is on-line, whose update comes in time, and what a round takes."""

    clock: Clock

    slot = "devices"
    rank = 40

    def init(self) -> ServerState:
        """Return the clock before the first round."""
        return self.clock.init()

    def check(self, saved: ServerState) -> None:
        """Raise ``CheckpointError`` if the devices are others than those that the run began with."""
        self.clock.check(saved)

    def summary(self, state: FederationState) -> Mapping[str, Any]:
        """Return what a run has taken so far."""
        return self.clock.summary(state.slot(self.slot))

    def available(self, round: Round) -> None:
        """Leave out who is off-line or has no energy, and ask for more clients if some are expected to be late."""
        round.available = self.clock.available(round.before.slot(self.slot), round.available)
        round.num_wanted = self.clock.num_slots(round.num_wanted, len(round.available))

    def plan(self, round: Round) -> None:
        """Compute when each client of the cohort is done, and whose update counts."""
        floats = {client_id: round.num_floats(client_id) for client_id in round.finished}
        known = round.before.slot(self.slot)
        round.plan = self.clock.plan(known, round.finished, floats, seed=round.seed, round=round.number)
        round.finished = round.plan.finished

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Let the round's time pass, and measure ``sim/...``."""
        assert round.plan is not None
        known, asking = round.before.slot(self.slot), round.queries
        drawn = {"seed": round.seed, "round": round.number}
        clock, taken = self.clock.advance(known, round.plan, asking.asked, asking.ledger, **drawn)
        round.metrics |= taken
        return clock
