"""What a round leaves behind: who sent what, what it cost, what was measured, and the state that is saved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from fedfacet.types import ServerState, State


class Disclosed(NamedTuple):
    """That a client has answered a query.

    Attributes:
        client_id: position of the client in the partition.
        query: its name.
        kind: what the answer tells.
        floats_up: how many numbers left the client.
        epsilon: of the Laplace noise on them; ``None`` for none.
        counted: the noise multiplier by which the run's epsilon counts the answer; ``None`` where it does not.
    """

    client_id: int
    query: str
    kind: str
    floats_up: int
    epsilon: float | None
    counted: float | None = None


@dataclass(slots=True)
class Ledger:
    """What crossed between server and clients in a round, in numbers of floats, and what queries cost the clients.

    Attributes:
        floats_down: sent to clients for training.
        floats_up: sent back as updates.
        query_floats_down: sent along with questions, and of models to clients outside the cohort so that they could answer one.
        query_floats_up: sent back as answers.
        query_samples: samples passed through a model to answer queries, but for those with which a client began its training of
            the round.
    """

    floats_down: int = 0
    floats_up: int = 0
    query_floats_down: int = 0
    query_floats_up: int = 0
    query_samples: int = 0


@dataclass(frozen=True, slots=True)
class ClientReceipt:
    """What a round keeps of a client whose update arrived, when the update's tensors are freed.

    Attributes:
        client_id: position of the client in the partition.
        num_samples: how many samples the client holds (n_k).
        num_steps: local steps taken.
        loss_sum: sum of the losses of the samples seen while training, finite.
        num_seen: samples seen while training, repetitions counted; 0 where all of a private client's batches were empty.
        answers: query name -> what the client answered in this round.
    """

    client_id: int
    num_samples: int
    num_steps: int
    loss_sum: float
    num_seen: float
    answers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round leaves behind besides the new state.

    Attributes:
        round: number of the round, counted from 1.
        cohort: the clients that were asked to train, in the order of selection.
        receipts: one per client whose update entered the new model, in cohort order.
        metrics: measured values by name, the same names every round; NaN where not measured.
        ledger: what crossed.
        seconds: wall-clock time by phase: ``ask`` (until clients have answered), ``select`` (what the selector does besides),
            ``train`` (with aggregation), ``measure``.
        num_clients: the size of the population.
        disclosed: who answered what in the round, in the order of the questions.
        durations: client -> simulated seconds until its update arrived, of those that did; empty without devices.
        answers: query name -> client -> what it answered in the round, of all who were asked.
    """

    round: int
    cohort: tuple[int, ...]
    receipts: tuple[ClientReceipt, ...]
    metrics: Mapping[str, float]
    ledger: Ledger
    seconds: Mapping[str, float]
    num_clients: int
    disclosed: tuple[Disclosed, ...] = ()
    durations: Mapping[int, float] = field(default_factory=dict)
    answers: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)

    @property
    def arrived(self) -> tuple[int, ...]:
        """The clients whose update entered the new model, in cohort order."""
        return tuple([receipt.client_id for receipt in self.receipts])


def validation_rank(measured: Mapping[str, float], metric: str, sign: int) -> tuple[float, float] | None:
    """Return worst group and average on validation data, or on what clients hold out, times ``sign``; ``None`` if one lacks."""
    split = "val" if f"val/{metric}" in measured else "holdout"
    worst, average = (sign * measured.get(f"{split}/{metric}{end}", math.nan) for end in ("_worst_group", ""))
    return None if math.isnan(worst) or math.isnan(average) else (worst, average)


@dataclass(frozen=True, slots=True)
class FederationState:
    """The only thing that survives a round; a checkpoint is this and nothing else. Nothing in it is changed in place.

    Attributes:
        round: how many rounds are complete.
        model: the global model.
        memory: client -> what it keeps for itself.
        disclosures: query name -> client -> answer.
        participation_counts: how often each client's update has arrived, int64 of shape (num_clients,).
        selector: the selector's state.
        aggregator: the aggregator's state.
        callbacks: callback name -> its ``state_dict``.
        partition_digest: of the partition that the run is about.
        data_digest: of the data set that the run is about.
        stopped: why the run ended before all its rounds were done; empty where it did not.
        frozen_digest: of the parameters that nobody trains and that are not in ``model``; empty without any.
        slots: name of a mechanism's slot -> its state.
    """

    round: int
    model: State
    memory: Mapping[int, State]
    disclosures: Mapping[str, Mapping[int, Any]]
    participation_counts: Tensor
    selector: ServerState
    aggregator: ServerState
    callbacks: Mapping[str, dict[str, Any]]
    partition_digest: str
    data_digest: str = ""
    stopped: str = ""
    frozen_digest: str = ""
    slots: Mapping[str, ServerState] = field(default_factory=dict)

    def slot(self, name: str) -> ServerState:
        """Return the state of a mechanism; empty for one that keeps nothing."""
        return self.slots.get(name, {})

    def with_slot(self, name: str, kept: ServerState) -> "FederationState":
        """Return the state with another one of a mechanism, of the selector or of the callbacks."""
        return replace(self, **({name: kept} if name in ("selector", "callbacks") else {"slots": {**self.slots, name: kept}}))
