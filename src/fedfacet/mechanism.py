"""The contract of a mechanism, which takes part in a round: what every file of ``mechanisms/`` is written against.

``round.run_round`` goes through the points below, in the order of ``Mechanism``'s methods, and knows no mechanism by name.
A point that a mechanism does not override costs nothing.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from fedfacet.aggregators.base import Aggregator
from fedfacet.builtin import is_builtin
from fedfacet.clock import Plan
from fedfacet.query_session import QuerySession
from fedfacet.records import ClientReceipt, FederationState, RoundResult
from fedfacet.server_evaluator import ServerEvaluator
from fedfacet.types import ClientTask, ClientUpdate, Facts, Query, ServerState, State

Fold: TypeAlias = Callable[[ServerState, State, Iterable[ClientUpdate]], tuple[ServerState, State]]
"""Makes the next state of the aggregator and the next model of a round's updates, as ``Aggregator.aggregate`` does."""


@dataclass(slots=True, kw_only=True)
class Round:
    """What is known of a round while it is under way; ``run_round`` makes it, and mechanisms fill it.

    Attributes:
        number: of the round, counted from 1.
        before: the state that the last round left.
        federation: the ``Federation``, for those who look at all of it, as callbacks do.
        lap: ``lap(phase)`` books the time since it was called last to a phase of ``RoundResult.seconds``.
        seconds: what it has booked.
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
        updates: the updates, where somebody wants to see them all.
        keeps_updates: whether somebody does; ``plan`` is where to say so.
        num_dropped: how many updates did not count.
        aggregator: makes the next model; ``available`` is where to put another in its place for the round.
        evaluator: of models on the server's samples; ``None`` where none are judged.
        metrics: what the round has measured so far.
        is_measured: tells whether anything is measured after the round.
        notes: what a mechanism hands from one of its points to a later one, by its slot.
    """

    number: int
    before: FederationState
    federation: Any
    lap: Callable[[str], None]
    seconds: Mapping[str, float]
    away: frozenset[int]
    available: Sequence[int]
    num_wanted: int
    selection_seed: int
    server: ServerState
    aggregator: Aggregator
    log_weights: NDArray[Any] | None = None
    queries: QuerySession = field(init=False)
    cohort: list[int] = field(default_factory=list)
    finished: Mapping[int, float] = field(default_factory=dict)
    plan: Plan | None = None
    tasks: list[ClientTask] = field(default_factory=list)
    memory: dict[int, State] = field(default_factory=dict)
    receipts: list[ClientReceipt] = field(default_factory=list)
    updates: list[ClientUpdate] = field(default_factory=list)
    keeps_updates: bool = False
    num_dropped: int = 0
    evaluator: ServerEvaluator | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    is_measured: Callable[[], bool] = lambda: True
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        """Those of the federation."""
        return self.federation.facts  # type: ignore[no-any-return]

    @property
    def seed(self) -> int:
        """That of the run."""
        return self.federation.seed  # type: ignore[no-any-return]

    @property
    def cohort_size(self) -> int:
        """How many clients ``federation.cohort_size`` asks for."""
        return self.federation.cohort_size  # type: ignore[no-any-return]

    def num_floats(self, client_id: int) -> tuple[int, int]:
        """Count how many numbers a client is sent and sends back."""
        return self.federation.num_floats_crossing(self.before, client_id)  # type: ignore[no-any-return]


class Mechanism:
    """One concern of a round in one file: its hyperparameters, its slot of the state, and what it does at each point.

    A mechanism is immutable. What it must remember from round to round is its slot of the saved state: ``init`` returns the
    first one, and ``after`` the next. Every method has a default that does nothing.
    """

    slot: ClassVar[str] = ""
    """Name of its part of ``FederationState``; two mechanisms of a federation have different ones."""

    rank: ClassVar[int] = 0
    """Where it stands among others: lower ones come first, but for ``incoming`` and ``after``, which go the other way.

    In the package: samples of the server 2, what a selector learns 5, schedule 10, termination 12, the end of the run 14,
    callbacks 15, statistics of norms 16, first rounds of FedAvg 18, participation 20, disclosure 25, privacy 30, what a
    selector measures 35, devices 40, the server's gradient 44, what an aggregator asks 45, asynchronous rounds 50, parts of
    models 60, rows of held classes 62, what clients log 70, the check of updates 90.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    """Names of what it sends along with the model, by ``outgoing``; some other part must need each of them."""

    requires: ClassVar[frozenset[str]] = frozenset()
    """Names of what some other part must give."""

    def init(self) -> ServerState:
        """Return its slot before the first round: plain data and tensors.

        A resume holds a saved slot to this one: names, types and shapes must be the same. What grows starts empty: ``{}``,
        ``[]``, ``None``, or a tensor without entries.
        """
        return {}

    def check(self, saved: ServerState) -> None:
        """Raise ``CheckpointError`` if a saved slot belongs to other hyperparameters."""

    def restore(self, saved: FederationState, *, failing: bool) -> None:
        """Go back to a saved state, if it keeps anything besides; ``failing`` if a round failed, whose error tells more."""

    def summary(self, state: FederationState) -> Mapping[str, Any]:
        """Return what a run's summary says of it, under the name of its slot; nothing by default."""
        return {}

    def draws_between_clients(self) -> bool:
        """Tell whether it may draw from generators that clients draw from, between two of them, as code of a user's may."""
        return not is_builtin(self)

    def start(self, federation: Any) -> None:
        """Run before this process's first round, also after a resume."""

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

    def progress(self, number: int, position: int, expected: int, phase: str) -> None:
        """Run when one of a phase's ``expected`` clients is done; ``phase`` is ``"train"`` or ``"query ..."``."""

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate | None:
        """Return an update that has arrived; ``None`` if it does not count.

        What it adds to ``update.memory`` comes back in the client's next ``task.memory``.
        """
        return update

    def rejected(self, number: int, client_id: int, fault: str, query: Query | None) -> None:
        """Raise to end the run since a client's update, or its answer to a query, does not count; else it is left out."""

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Return what makes the next model, given what does so for the mechanisms after this one and the aggregator.

        An ``Algorithm`` trains clients itself: it does not read the updates that ``inner`` is given.
        """
        return inner

    def stop(self, round: Round, result: RoundResult) -> str | None:
        """Return why the run ends with this round, ``None`` if it does not; ``result`` lacks what is measured in others."""
        return None

    def after(self, round: Round, new: FederationState) -> ServerState | None:
        """Add to ``round.metrics``, given the state with the new model; return its next slot, ``None`` for the one it has."""
        return None

    def complete(self, federation: Any, result: RoundResult) -> None:
        """Run when the round is part of ``federation.state``."""

    def end(self, federation: Any, status: str) -> None:
        """Run at the very end; ``status`` is ``"finished"``, ``"interrupted"`` or ``"failed"``."""


def hooks(mechanisms: Iterable[Mechanism], point: str) -> list[Any]:
    """Return the methods that mechanisms have at a point, without those that only inherit the default."""
    default = getattr(Mechanism, point)
    return [getattr(one, point) for one in mechanisms if getattr(type(one), point) is not default]


class Chain:
    """Mechanisms in the order of their ranks, and what each does at every point of a round, found once.

    Args:
        mechanisms: in any order.

    Raises:
        ValueError: if two of them have the same slot of the state, or one with a state has none.
    """

    def __init__(self, mechanisms: Iterable[Mechanism]) -> None:
        self.mechanisms = every = tuple(sorted(mechanisms, key=lambda one: one.rank))
        if lacking := [type(one).__name__ for one in every if hooks([one], "init") and not one.slot]:
            raise ValueError(f"Expected mechanisms with `init` to have a slot, but {lacking[0]} has none: name its `slot`.")
        fields = {field.name for field in dataclasses.fields(FederationState)}
        slots = [one.slot for one in every if one.slot]
        slots += [one.slot for one in every if one.slot in fields and not is_builtin(one)]
        if twice := sorted({slot for slot in slots if slots.count(slot) > 1}):
            raise ValueError(f"Expected mechanisms with different slots, but two have `{twice[0]}`: leave one out.")
        self.available = [(one.rank, one.available) for one in every if hooks([one], "available")]
        self.ask, self.plan, self.outgoing, self.dispatch, self.progress, self.rejected, self.stop = (
            hooks(every, point) for point in ("ask", "plan", "outgoing", "dispatch", "progress", "rejected", "stop")
        )
        self.incoming, self.merge = hooks(every[::-1], "incoming"), hooks(every[::-1], "merge")
        self.after = [(one.slot, one.after) for one in every[::-1] if hooks([one], "after")]
        self.complete = hooks(every, "complete")
