"""Rounds that take the updates of the clients that are done first, while others train on."""

from dataclasses import dataclass, replace

from fedfacet.aggregators.base import Aggregator
from fedfacet.async_schedule import AsyncSchedule
from fedfacet.clock import Clock
from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.types import ClientTask, ClientUpdate, ServerState


@dataclass(frozen=True, eq=False)
class AsynchronousRounds(Mechanism):
    """Sends the model to clients that are free, and takes the updates that arrive first; goes with ``SimulatedDevices``."""

    flights: AsyncSchedule
    clock: Clock

    slot = "flights"
    rank = 50

    def init(self) -> ServerState:
        """Return no orders."""
        return self.flights.init()

    def available(self, round: Round) -> None:
        """Leave out who is at work."""
        known = round.before.slot(self.slot)
        round.available = self.flights.free(known, round.available)
        round.num_wanted = self.flights.num_slots(known, len(round.available))

    def dispatch(self, round: Round) -> None:
        """Send the orders out, and take in their place those whose updates arrive first."""
        assert round.plan is not None
        before, drawn = round.before, {"seed": round.seed, "round": round.number}
        now = before.slot("devices")["clock"] + self.clock.asking(round.queries.asked, **drawn)[0]
        known, given = before.slot(self.slot), {"now": now, "seed": round.seed, "memory": before.memory}
        round.notes[self.slot], round.tasks, round.plan = self.flights.turn(known, round.tasks, round.plan, **given)

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Note down how many rounds ago the client's model was the current one."""
        return replace(update, staleness=round.number - task.round)

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Measure ``train/staleness``, the mean of that, and return the orders that are left."""
        late = [round.number - task.round for task in round.tasks]
        round.metrics["train/staleness"] = sum(late) / len(late) if late else float("nan")
        left: ServerState = round.notes[self.slot]
        return left


def async_schedule_of(aggregator: Aggregator, cohort_size: int, num_clients: int) -> AsyncSchedule | None:
    """Return whose updates a round takes if clients train beside the server; ``None`` if the server waits for them.

    Raises:
        ValueError: if fewer clients are at work than make a round, or more than there are.
    """
    if aggregator.at_work is None:
        return None
    return AsyncSchedule(concurrency=aggregator.at_work(cohort_size, num_clients), buffer=cohort_size)
