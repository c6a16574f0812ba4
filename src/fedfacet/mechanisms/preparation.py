"""What an aggregator asks clients before they train, and what it makes of the answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedfacet.aggregators.base import Aggregator
from fedfacet.round import Mechanism, Round
from fedfacet.types import ClientTask, ClientUpdate


@dataclass(frozen=True, eq=False)
class Preparation(Mechanism):
    """Puts an aggregator's ``report`` to clients, has it ``prepare``, and hands it each client's answer with the update."""

    aggregator: Aggregator

    rank = 45

    def plan(self, round: Round) -> None:
        """Ask those who will train, or all who are available, and set ``round.server``; rounds of FedAvg ask nothing."""
        reports: Mapping[int, Any] = {}
        question = self.aggregator.report() if self.aggregator.report is not None else None
        if question is not None and not round.is_fedavg:
            trains = [client_id for client_id, part in round.finished.items() if part > 0]
            reports = round.queries.report(question, round.available if self.aggregator.asks_everybody else trains)
            round.notes["question"] = question.name
        if self.aggregator.prepare is not None and round.cohort:
            round.server = self.aggregator.prepare(round.before.aggregator, reports)

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return an update with its client's answer, ``None`` where it has given none."""
        if (question := round.notes.get("question")) is None:
            return update
        return replace(update, report=round.queries.disclosures.get(question, {}).get(task.client_id))
