"""A learning rate that changes from round to round."""

from dataclasses import dataclass, replace

from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.schedulers import Scheduler, factor_of
from fedfacet.types import ClientTask, ServerState


@dataclass(frozen=True, eq=False)
class LearningRateSchedule(Mechanism):
    """Sends a scheduler's factor with each order, and lets the scheduler learn from what the round measured."""

    scheduler: Scheduler

    slot = "scheduler"
    rank = 10

    def init(self) -> ServerState:
        """Return the scheduler's first state."""
        return self.scheduler.init()

    def outgoing(self, before: FederationState, task: ClientTask) -> ClientTask:
        """Return an order with the factor of its round."""
        return replace(task, lr_factor=factor_of(self.scheduler, before.slot(self.slot), before.round + 1))

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Measure ``train/lr_factor``, and return the scheduler's next state."""
        known = round.before.slot(self.slot)
        round.metrics["train/lr_factor"] = factor_of(self.scheduler, known, round.number)
        return self.scheduler.observe(known, round.metrics)
