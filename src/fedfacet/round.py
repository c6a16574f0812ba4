"""A round and the mechanisms that take part in it: what every file of ``mechanisms/`` is written against.

``Federation.run_round`` goes through the points below, in the order of ``Mechanism``'s methods, and knows no mechanism by name.
A point that a mechanism does not override costs nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from fedfacet.types import (
    ClientReceipt,
    ClientTask,
    ClientUpdate,
    Facts,
    FederationState,
    Query,
    RoundResult,
    ServerState,
    State,
)

if TYPE_CHECKING:
    from fedfacet.clock import Plan
    from fedfacet.query_session import QuerySession
    from fedfacet.server_evaluator import ServerEvaluator

Fold: TypeAlias = Callable[[ServerState, State, Iterable[ClientUpdate]], tuple[ServerState, State]]
"""Makes the next state of the aggregator and the next model of a round's updates, as ``Aggregator.aggregate`` does."""


@dataclass(slots=True, kw_only=True)
class Round:
    """What is known of a round while it is under way; ``Federation.run_round`` makes it, and mechanisms fill it.

    Attributes:
        number: of the round, counted from 1.
        before: the state that the last round left.
        facts: of the federation.
        seed: of the run.
        cohort_size: how many clients ``federation.cohort_size`` asks for.
        num_floats: ``num_floats(client_id)`` returns how many numbers a client is sent and sends back.
        away: the clients that take no part in the round as their answers do not count.
        available: the clients that are able to take part, in ascending order.
        num_wanted: how many of them shall, if there are so many.
        log_weights: logarithms of the weights by which they are drawn, shape (K,); ``None`` for all alike.
        queries: the questions of the round.
        cohort: the clients that were selected.
        server: the state of the aggregator with which the round begins.
        finished: client of the cohort -> the part of its steps that it finishes; 0 for one that never answers.
        plan: how the round will go on the clients' devices; ``None`` without devices.
        selection_seed: of the draws of the selector.
        tasks: the orders whose updates the round takes.
        memory: client -> what it keeps for itself from this round on.
        receipts: one per update that counts.
        updates: the updates, where a callback or the selector wants to see them.
        keeps_updates: whether one does.
        num_dropped: how many updates did not count.
        is_fedavg: whether FedAvg takes the place of the aggregator, as in the first rounds of some selectors.
        evaluator: of models on the server's samples; ``None`` where none are judged.
        metrics: what the round has measured so far.
        is_measured: tells whether anything is measured after the round.
        notes: what a mechanism hands from one of its points to a later one, by its slot.
    """

    number: int
    before: FederationState
    facts: Facts
    seed: int
    cohort_size: int
    num_floats: Callable[[int], tuple[int, int]]
    is_measured: Callable[[], bool]
    away: frozenset[int]
    available: Sequence[int]
    num_wanted: int
    selection_seed: int
    server: ServerState
    log_weights: NDArray[Any] | None = None
    queries: "QuerySession" = field(init=False)
    cohort: list[int] = field(default_factory=list)
    finished: Mapping[int, float] = field(default_factory=dict)
    plan: "Plan | None" = None
    tasks: list[ClientTask] = field(default_factory=list)
    memory: dict[int, State] = field(default_factory=dict)
    receipts: list[ClientReceipt] = field(default_factory=list)
    updates: list[ClientUpdate] = field(default_factory=list)
    keeps_updates: bool = False
    num_dropped: int = 0
    is_fedavg: bool = False
    evaluator: "ServerEvaluator | None" = None
    metrics: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class Mechanism:
    """One concern of a round in one file: its hyperparameters, its slot of the state, and what it does at each point.

    A mechanism is immutable. What it must remember from round to round is its slot of the saved state: ``init`` returns the
    first one, and ``after`` the next. Every method has a default that does nothing.
    """

    slot: ClassVar[str] = ""
    """Name of its part of ``FederationState.slots``; two mechanisms of a federation have different ones."""

    rank: ClassVar[int] = 0
    """Where it stands among others: lower ones come first at every point except ``after``, which goes the other way.

    In the package: samples of the server 2, schedule 10, termination 12, participation 20, disclosure 25, privacy 30,
    devices 40, what an aggregator asks 45, asynchronous rounds 50, parts of models 60. The selector learns at 5, and the new
    model is measured at 15.
    """

    def init(self) -> ServerState:
        """Return its slot before the first round: plain data and tensors."""
        return {}

    def check(self, saved: ServerState) -> None:
        """Raise ``CheckpointError`` if a saved slot belongs to other hyperparameters."""

    def summary(self, state: FederationState) -> Mapping[str, Any]:
        """Return what a run's summary says of it, under the name of its slot; nothing by default."""
        return {}

    def available(self, round: Round) -> None:
        """Change ``round.available``, ``round.num_wanted`` or ``round.log_weights`` before clients are selected."""

    def ask(self, query: Query) -> float | None:
        """Raise if a question may not be put; return the noise multiplier by which its answers are counted, if they are."""
        return None

    def plan(self, round: Round) -> None:
        """Change ``round.finished`` or set ``round.plan``, once the cohort is known."""

    def outgoing(self, before: FederationState, task: ClientTask) -> ClientTask:
        """Return a client's order for the round after a state; pure, and called any number of times."""
        return task

    def dispatch(self, round: Round) -> None:
        """Change ``round.tasks`` when all orders are there; called once."""

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return an update that has arrived and counts."""
        return update

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Return what makes the next model, given what does so for the mechanisms after this one and the aggregator."""
        return inner

    def stop(self, round: Round, result: RoundResult) -> str | None:
        """Return why the run ends with this round, ``None`` if it does not; ``result`` lacks what is measured in others."""
        return None

    def after(self, round: Round, new: FederationState) -> ServerState | None:
        """Add to ``round.metrics``, given the state with the new model; return its next slot, ``None`` for the one it has."""
        return None


def hooks(mechanisms: Iterable[Mechanism], point: str) -> list[Any]:
    """Return the methods that mechanisms have at a point, without those that only inherit the default."""
    default = getattr(Mechanism, point)
    return [getattr(one, point) for one in mechanisms if getattr(type(one), point) is not default]
