"""What an aggregator asks clients before they train, and what it makes of the answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedfacet.mechanism import Mechanism, Round
from fedfacet.types import ClientTask, ClientUpdate


class Preparation(Mechanism):
    """Puts an aggregator's ``report`` to clients, has it ``prepare``, and hands it each client's answer with the update."""

    rank = 45

    def plan(self, round: Round) -> None:
        """Ask those who will train, or all who are available, and set ``round.server``."""
        reports: Mapping[int, Any] = {}
        question = round.aggregator.report() if round.aggregator.report is not None else None
        if question is not None:
            trains = [client_id for client_id, part in round.finished.items() if part > 0]
            reports = round.queries.report(question, round.available if round.aggregator.asks_everybody else trains)
            round.notes["question"] = question.name
        if round.aggregator.prepare is not None and round.cohort:
            round.server = round.aggregator.prepare(round.before.aggregator, reports)

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return an update with its client's answer, ``None`` where it has given none."""
        if (question := round.notes.get("question")) is None:
            return update
        return replace(update, report=round.queries.disclosures.get(question, {}).get(task.client_id))
