"""First rounds whose updates FedAvg averages, whatever the aggregator."""

from dataclasses import dataclass

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.mechanism import Mechanism, Round


@dataclass(frozen=True, eq=False)
class FedAvgFirst(Mechanism):
    """Averages the updates of a run's first rounds in the aggregator's place, as FedDiverse's pre-training asks.

    An aggregator that sends or reads more than models is not replaced. One that is neither asks clients nor judges models in
    these rounds, and its state stays as it is.

    Args:
        rounds: how many rounds come first, 0 or larger.
    """

    rounds: int

    rank = 18

    def available(self, round: Round) -> None:
        """Put FedAvg in the aggregator's place."""
        usual = round.aggregator
        if round.number <= self.rounds and usual.broadcast is None and not usual.extras(round.facts):
            round.aggregator = FedAvg(weighting=usual.weighting, buffers=usual.buffers)
