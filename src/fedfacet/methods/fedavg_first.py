"""First rounds whose updates FedAvg averages, whatever the aggregator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.arguments import Choice, Whole
from fedfacet.mechanism import Mechanism, Round
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import ASYNCHRONOUS, CENTRAL_NOISE


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


@dataclass(eq=False, kw_only=True)
class PretrainedSelector(ClientSelector):
    """A selector that asks clients once a model is trained: all of them take part in the first rounds.

    Args:
        pretraining_rounds: T_0, how many rounds come first.
        pretraining: ``"fedavg"``, by which FedAvg averages their updates, or ``"ordinary"``, by which the aggregator does, and
            clients are asked in round T_0 already.
    """

    pretraining_rounds: Annotated[int, Whole(0)] = 1
    pretraining: Annotated[str, Choice("fedavg", "ordinary")] = "fedavg"

    @property
    def excludes(self) -> Mapping[str, str]:  # type: ignore[override]
        """What needs cohorts of a size that is known beforehand."""
        why = "takes all clients in its first rounds: choose poisson or uniform, or selector.pretraining_rounds=0"
        return dict.fromkeys((ASYNCHRONOUS, CENTRAL_NOISE) if self.mechanisms() else (), why)

    def mechanisms(self) -> list[Mechanism]:
        """Return what puts FedAvg in the aggregator's place while pre-training."""
        return [FedAvgFirst(self.pretraining_rounds)] if self.pretraining_rounds and self.pretraining == "fedavg" else []

    def takes_everybody(self, number: int) -> bool:
        """Tell whether all who are available take part in a round, before any of them is asked."""
        return number < self.pretraining_rounds + (self.pretraining == "fedavg")
