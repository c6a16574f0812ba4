"""The server's noise, and the account of what all noise proves."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedfacet.accounting import Accounting
from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.privacy.central import CentralDP
from fedfacet.records import FederationState
from fedfacet.types import ClientUpdate, Query, ServerState, State

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class DifferentialPrivacy(Mechanism):
    """Keeps the account of a run's noise, and adds that of the server to the sum of updates if the server is who noises.

    A client whose epsilon would exceed its limit takes no further part. With noise at the server the draws of the selection
    follow its key. An epsilon of sampled clients holds only while it is secret who was drawn.
    """

    accounting: Accounting

    slot = "privacy"
    rank = 30

    @property
    def central(self) -> CentralDP | None:
        """The noise of the server; ``None`` where clients add it."""
        return self.accounting.privacy if isinstance(self.accounting.privacy, CentralDP) else None

    def init(self) -> ServerState:
        """Return by what the key of the noise is known again, and what has been spent: nothing."""
        return self.accounting.init()

    def check(self, saved: ServerState) -> None:
        """Raise ``CheckpointError`` if the run began with another key."""
        self.accounting.privacy.check(saved)

    def summary(self, state: FederationState) -> Mapping[str, Any]:
        """Return what a run has spent, a sentence for a paper among it."""
        return self.accounting.summary(state)

    def available(self, round: Round) -> None:
        """Leave out who has spent its epsilon."""
        round.available = self.accounting.admitted(round.before, round.available)
        if self.central is not None:
            round.selection_seed = self.central.seed(round.seed)

    def ask(self, query: Query) -> float | None:
        """Return by which noise the answers are counted; raise ``DisclosureError`` if they must be and are not."""
        self.accounting.check(query)
        return self.accounting.counted(query)

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Give the aggregator the noised mean instead of the updates."""
        if (central := self.central) is None:
            return inner

        def released(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            known, shapes = round.before.slot(self.slot), {name: model[name] for name in round.facts.parameters}
            planned = {"expected": round.cohort_size, "seed": round.seed, "round": round.number}
            limits = round.aggregator.noised() if round.aggregator.noised is not None else {}
            statistics = {name: (round.federation.extras[name], *limit) for name, limit in limits.items()}
            round.notes[self.slot], mean = central.released(known, updates, shapes, statistics, **planned)
            return inner(server, model, iter([mean]))

        return released

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Book what the round has spent, and measure ``privacy/epsilon``."""
        before, known = round.before, round.notes.get(self.slot, round.before.slot(self.slot))
        spent = self.accounting.after(_with(before, known), round.tasks, round.queries.disclosed)
        new = _with(new, spent)
        for client_id in self.accounting.stopping(before, new):
            log.info("Client %d takes no further part: its epsilon would exceed its limit.", client_id)
        round.metrics |= self.accounting.metrics(before, new, due=round.is_measured())
        return spent


def _with(state: FederationState, slot: ServerState) -> FederationState:
    return replace(state, slots={**state.slots, DifferentialPrivacy.slot: slot})
