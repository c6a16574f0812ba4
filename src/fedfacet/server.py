"""A server between rounds: its parts, its state, and what it sends to whom."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.builtin import is_builtin
from fedfacet.checked_aggregate import checked_aggregate
from fedfacet.checked_mechanisms import checked_chain
from fedfacet.derived import other_names
from fedfacet.engines.base import Engine
from fedfacet.errors import Interrupted
from fedfacet.mechanism import Mechanism
from fedfacet.query_session import ClientsAway, QuerySession
from fedfacet.records import FederationState
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import Broadcast, ClientTask, Facts, Query

_Mechanism = TypeVar("_Mechanism", bound=Mechanism)


class Server:
    """What a round needs of a federation; see ``Federation`` for the arguments.

    Attributes:
        state: between rounds that which the last one left.
        chain: the mechanisms, and what each does at every point of a round.
        fold: makes the next model of a round's updates.
        apart: keeps generators that clients draw from apart from code that runs between two of them.
    """

    state: FederationState

    def __init__(
        self,
        facts: Facts,
        engine: Engine,
        selector: ClientSelector,
        aggregator: Aggregator,
        mechanisms: Iterable[Mechanism],
        cohort_size: int,
        seed: int,
    ) -> None:
        self.facts = facts
        self.num_clients = facts.num_clients
        self.engine = engine
        self.selector = selector
        self.aggregator = aggregator
        self.chain = checked_chain(mechanisms)
        self.cohort_size = cohort_size
        self.seed = seed
        self.fold = checked_aggregate(aggregator)
        self.extras = aggregator.extras(facts)
        self._other_names = other_names(facts.derived)
        self._stop_signal: int | None = None
        # These are at work between two clients; the user's own may draw from the generators that clients draw from.
        calm = is_builtin(aggregator) and not any(one.draws_between_clients() for one in self.mechanisms)
        clients = None if calm else getattr(engine, "clients", None)
        self.apart = partial(rng.apart, device=clients.device, others=clients.draws_elsewhere) if clients is not None else iter

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """All of them, in their order."""
        return self.chain.mechanisms

    @property
    def callbacks(self) -> Mapping[str, Any]:
        """Those who watch the run, by name."""
        return next((one.callbacks for one in self.mechanisms if one.slot == "callbacks"), {})  # type: ignore[attr-defined]

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before all its rounds are done."""
        return bool(self.chain.stop)

    def find(self, kind: type[_Mechanism]) -> _Mechanism | None:
        """Return the mechanism of a class; ``None`` where the federation has none."""
        return next((one for one in self.mechanisms if isinstance(one, kind)), None)

    def drop(self, kind: type[Mechanism]) -> None:
        """Do without the mechanisms of a class from now on; the state stays as it is."""
        self.chain = checked_chain(one for one in self.mechanisms if not isinstance(one, kind))

    def put(self, mechanism: Mechanism) -> None:
        """Take a mechanism, instead of the one of its class if there is one; the state stays as it is."""
        self.chain = checked_chain([*(one for one in self.mechanisms if not isinstance(mechanism, type(one))), mechanism])

    def roll_back(self, before: FederationState) -> None:
        """Return to a state, with what mechanisms kept then: the round after it has failed."""
        self.state = before
        for mechanism in self.mechanisms:
            mechanism.restore(before, failing=True)

    def stop(self, signal: int) -> None:
        """Ask for an end: ``fit`` raises ``Interrupted`` before the next client, and the state stays that of the last round."""
        self._stop_signal = signal

    def check_stop(self) -> None:
        """Raise ``Interrupted`` if somebody has asked for an end."""
        if self._stop_signal is not None:
            signal, self._stop_signal = self._stop_signal, None  # you may catch it and call `fit` again
            raise Interrupted(signal)

    def progress(self, number: int, position: int, expected: int, phase: str) -> None:
        """Tell mechanisms that another client has sent something, unless somebody has asked for an end."""
        self.check_stop()
        for show in self.chain.progress:
            show(number, position, expected, phase)

    def refuse_answers(self, number: int, query: Query, faults: Mapping[int, str]) -> None:
        """Have the clients away in a round whose answers do not count, unless a mechanism ends the run.

        Raises:
            ClientsAway: with all of them.
        """
        for client_id, fault in faults.items():
            for rejected in self.chain.rejected:
                rejected(number, client_id, fault, query)
        raise ClientsAway(faults)

    def order(self, before: FederationState, client_id: int, step_fraction: float = 1.0) -> ClientTask:
        """Return a client's order to train in the round after a state, as it is if the client finishes."""
        broadcast = self.aggregator.broadcast
        sent = broadcast(before.aggregator, before.model, client_id) if broadcast is not None else Broadcast(before.model)
        memory = before.memory.get(client_id, {})
        task = ClientTask(client_id, before.round + 1, self.seed, sent, memory, step_fraction)
        for outgoing in self.chain.outgoing:
            task = outgoing(before, task)
        return task

    def sent(self, before: FederationState, client_id: int) -> Broadcast:
        """Return what a client is sent in the round after a state; one that never takes part is sent all of the model."""
        return self.order(before, client_id).broadcast

    def num_floats_sent(self, broadcast: Broadcast, client_id: int) -> int:
        """Count a broadcast; tied tensors cross once, and personal ones before a client has any of its own."""
        has_own = self.facts.personal and self.state.participation_counts[client_id]
        model, own = broadcast.model, self._other_names | self.facts.personal if has_own else self._other_names
        sent = state.num_floats({name: model[name] for name in model if name not in own} if own else model)
        return sent + state.num_floats(broadcast.extras) if broadcast.extras else sent

    def num_floats_crossing(self, before: FederationState, client_id: int) -> tuple[int, int]:
        """Count what a client is sent in the round after a state, and what it sends back."""
        broadcast = self.sent(before, client_id)
        update = {name: broadcast.model[name] for name in (*self.facts.parameters, *self.facts.buffers)}
        return self.num_floats_sent(broadcast, client_id), state.num_floats(update) + state.num_floats(self.extras)

    def count_models(self, queries: QuerySession, state: FederationState, client_ids: Iterable[int]) -> None:
        """Count the models that clients were sent only to answer on."""
        for client_id in client_ids:
            floats = self.num_floats_sent(self.sent(state, client_id), client_id)
            queries.ledger.query_floats_down += floats
            known = queries.asked[client_id]
            queries.asked[client_id] = known._replace(floats_down=known.floats_down + floats)
