"""Samples of the server's, on which models are judged."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedfacet.aggregators.base import Aggregator
from fedfacet.engines.base import Engine
from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.selectors.base import ClientSelector
from fedfacet.server_evaluator import ServerEvaluator
from fedfacet.types import ClientUpdate, ServerData, ServerState, State


@dataclass(frozen=True, eq=False)
class ServerEvaluation(Mechanism):
    """Judges models on samples that the server owns, for an aggregator or a selector that asks for it.

    An aggregator that judges gets every update with what the sent model and the client's own say of the samples. In rounds of
    FedAvg it gets none.
    """

    server_data: ServerData
    engine: Engine
    aggregator: Aggregator
    selector: ClientSelector

    rank = 2

    def plan(self, round: Round) -> None:
        """Set ``round.evaluator`` for an aggregator that looks at the model that is sent, before it is sent."""
        if self.aggregator.judges is not None and self.aggregator.judges() == "groups_of_sent":
            round.evaluator = ServerEvaluator(self.engine, self.server_data, round.before.model)
            round.metrics["server/samples"] = 0  # its column stands before those of others

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Set ``round.evaluator`` where a part judges, and give its counts to an aggregator that does."""
        of_updates = self.aggregator.judges is not None and self.aggregator.judges() in ("groups", "classes")
        if not of_updates and (self.selector.judges is None or self.selector.judges() is None):
            return inner
        judge = round.evaluator = round.evaluator or ServerEvaluator(self.engine, self.server_data, round.before.model)
        round.metrics["server/samples"] = 0  # its column stands before those of others

        def judged(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            return inner(server, model, judge.judged(iter(updates)))

        return judged if of_updates and round.aggregator is self.aggregator else inner

    def after(self, round: Round, new: FederationState) -> None:
        """Measure ``server/samples``: how many were passed through models, by the selector too."""
        if round.evaluator is not None:
            round.metrics["server/samples"] = round.evaluator.num_samples
