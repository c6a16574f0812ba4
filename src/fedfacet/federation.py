"""The round loop and the saved state: the file to read first.

A round is a pure function of the saved state and the round number (law 1). It runs in ten steps, numbered below; every draw in
it comes from ``rng.stream(seed, purpose, round, ...)``, and everything that crosses between server and clients is counted.
Rounds are counted from 1. The file is a long one, so that a round and the state that it changes are read in one go.
"""

import itertools
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.arguments import check_choice, check_whole
from fedfacet.builtin import is_builtin
from fedfacet.callbacks.base import Callback, Measurement, measured_by, merged
from fedfacet.checked_aggregate import checked_aggregate
from fedfacet.derived import derive, other_names
from fedfacet.engines.base import Engine
from fedfacet.errors import BadUpdateError, Interrupted, SelectionError, first_line
from fedfacet.mechanisms.preparation import Preparation
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.query_session import ClientsAway, QuerySession
from fedfacet.round import Fold, Mechanism, Round, hooks
from fedfacet.selectors.base import ClientSelector
from fedfacet.storage.fitting import check_fits
from fedfacet.types import (
    Answer,
    Broadcast,
    ClientReceipt,
    ClientTask,
    ClientUpdate,
    Facts,
    FederationState,
    Ledger,
    Query,
    RoundResult,
    SelectionContext,
    ServerState,
    State,
)
from fedfacet.updates import checked

log = logging.getLogger(__name__)

_AWAY, _SELECTION, _MEASUREMENT, _LEARNING = 25, 35, 15, 5
"""Where the federation's own steps stand among the ranks of mechanisms."""

_Mechanism = TypeVar("_Mechanism", bound=Mechanism)


class Federation:
    """A server, its clients behind an engine, and the rounds between them.

    Args:
        facts: the initial model, the number of clients, and what these send.
        engine: runs the clients; already set up.
        selector: says who takes part.
        aggregator: makes the next model.
        mechanisms: what else takes part in a round, in any order; see ``fedfacet.round``.
        rounds: how many rounds to run, 1 or larger.
        cohort_size: how many clients a round asks for by default, between 1 and the number of clients.
        seed: of initial weights, selection and local training; 0 or larger.
        on_bad_update: ``"raise"`` or ``"drop"`` an update that is malformed or holds NaN or infinity.
        callbacks: name -> callback, called in this order.

    Raises:
        ValueError: if a number is out of range.
    """

    _verified = staticmethod(checked)  # a federation whose updates are checked elsewhere has another

    def __init__(
        self,
        *,
        facts: Facts,
        engine: Engine,
        selector: ClientSelector,
        aggregator: Aggregator,
        mechanisms: Iterable[Mechanism] = (),
        rounds: int,
        cohort_size: int,
        seed: int,
        on_bad_update: str = "raise",
        callbacks: Mapping[str, Callback] | None = None,
    ) -> None:
        check_whole("federation.rounds", rounds)
        if not isinstance(cohort_size, int) or not 1 <= cohort_size <= facts.num_clients:
            raise ValueError(
                f"Expected `federation.cohort_size` between 1 and the federation's {facts.num_clients} clients, but got "
                f"{cohort_size!r}: lower it or choose a partition with more clients."
            )
        check_whole("seed", seed, 0)
        check_choice("federation.on_bad_update", on_bad_update, ("raise", "drop"))
        self.facts = facts
        self.num_clients = facts.num_clients
        self._everybody: Sequence[int] = range(facts.num_clients)  # of a million clients no list is made
        self.engine = engine
        self.selector = selector
        self.aggregator = aggregator
        self.rounds = rounds
        self.cohort_size = cohort_size
        self.seed = seed
        self.on_bad_update = on_bad_update
        self.callbacks = dict(callbacks or {})
        self.extras = aggregator.extras(facts)
        self._other_names = other_names(facts.derived)
        more_than_models = bool(self.extras) or aggregator.broadcast is not None
        self._fedavg_rounds = 0 if more_than_models else selector.fedavg_rounds
        self._fedavg = FedAvg(weighting=aggregator.weighting, buffers=aggregator.buffers).aggregate
        self._fold = checked_aggregate(aggregator)
        # These are at work between two clients; the user's own may draw from the generators that clients draw from.
        heard = [one for one in self.callbacks.values() if type(one).on_client_end is not Callback.on_client_end]
        mechanisms = list(mechanisms)
        clients = None if all(map(is_builtin, (aggregator, *heard, *mechanisms))) else getattr(engine, "clients", None)
        self._apart = partial(rng.apart, device=clients.device, others=clients.draws_elsewhere) if clients is not None else iter
        self._stop_signal: int | None = None
        self.away: frozenset[int] = frozenset()  # in this round, as their answers do not count
        self._arrange(mechanisms)
        judging = [part for part in (aggregator, selector) if part.judges is not None and part.judges() is not None]
        if judging and self.find(ServerEvaluation) is None:
            raise ValueError("Expected `server_data` for an aggregator or a selector that judges models, but got none.")
        self.state = self._first_state()

    def _arrange(self, mechanisms: Iterable[Mechanism]) -> None:
        """Put mechanisms in their order, and find once what each does at every point of a round.

        Raises:
            ValueError: if two of them have the same slot of the state.
        """
        own = [] if self.aggregator.report is None and self.aggregator.prepare is None else [Preparation(self.aggregator)]
        self.mechanisms = tuple(sorted([*mechanisms, *own], key=lambda one: one.rank))
        slots = [one.slot for one in self.mechanisms if one.slot]
        if twice := sorted({slot for slot in slots if slots.count(slot) > 1}):
            raise ValueError(f"Expected mechanisms with different slots, but two have `{twice[0]}`: leave one out.")
        first = [one for one in self.mechanisms if one.rank < _AWAY]
        self._able = hooks(first, "available"), hooks(self.mechanisms[len(first) :], "available")
        self._asked, self._planned, self._outgoing, self._dispatched, self._incoming, self._merging, self._stopping = (
            hooks(self.mechanisms, point) for point in ("ask", "plan", "outgoing", "dispatch", "incoming", "merge", "stop")
        )
        learning: list[tuple[int, str, Any]] = [(_MEASUREMENT, "", self._measured)]
        if self.selector.metrics is not None:
            learning.append((_SELECTION, "", self._of_selector))
        if self.selector.observe is not None:
            learning.append((_LEARNING, "", self._learnt))
        learning += [(after.__self__.rank, after.__self__.slot, after) for after in hooks(self.mechanisms, "after")]
        self._after = [(slot, after) for _, slot, after in sorted(learning, key=lambda one: -one[0])]

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before all its rounds are done."""
        return bool(self._stopping)

    def find(self, kind: type[_Mechanism]) -> _Mechanism | None:
        """Return the mechanism of a class; ``None`` where the federation has none."""
        return next((one for one in self.mechanisms if isinstance(one, kind)), None)

    def drop(self, kind: type[Mechanism]) -> None:
        """Do without the mechanisms of a class from now on; the state stays as it is."""
        self._arrange(one for one in self.mechanisms if not isinstance(one, (kind, Preparation)))

    def put(self, mechanism: Mechanism) -> None:
        """Take a mechanism, instead of the one of its class if there is one; the state stays as it is."""
        kept = [one for one in self.mechanisms if type(one) not in (type(mechanism), Preparation)]
        self._arrange([*kept, mechanism])

    def _first_state(self) -> FederationState:
        """Return the state before the first round."""
        return FederationState(
            round=0,
            model=state.clone(self.facts.model),
            memory={},
            disclosures={},
            participation_counts=torch.zeros(self.num_clients, dtype=torch.int64),
            selector=self.selector.init(self.facts),
            aggregator=self.aggregator.init(self.facts),
            callbacks={name: callback.state_dict() for name, callback in self.callbacks.items()},
            partition_digest=self.facts.partition_digest,
            data_digest=self.facts.data_digest,
            frozen_digest=self.facts.frozen_digest,
            slots={one.slot: one.init() for one in self.mechanisms if one.slot},
        )

    def restore(self, saved: FederationState) -> None:
        """Go back to a saved state; the next round is ``saved.round + 1``.

        Raises:
            CheckpointError: if the state belongs to another data set or partition, or to other parts.
        """
        check_fits(saved, self._first_state())
        for mechanism in self.mechanisms:
            mechanism.check(saved.slots.get(mechanism.slot, {}))
        for name in self.callbacks.keys() & saved.callbacks.keys():  # a logger may have come or gone since
            self.callbacks[name].load_state_dict(saved.callbacks[name])
        self.state = saved

    def stop(self, signal: int) -> None:
        """Ask for an end: ``fit`` raises ``Interrupted`` before the next client, and the state stays that of the last round."""
        self._stop_signal = signal

    def fit(self) -> FederationState:
        """Run the rounds that are left, and return the final state.

        Raises:
            Interrupted: after ``stop``.
        """
        status = "failed"
        try:
            for callback in self.callbacks.values():
                callback.on_fit_start(self)
            while self.state.round < self.rounds and not self.state.stopped:
                self._check_stop()
                self.run_round()
            status = "finished"
        except Interrupted:
            status = "interrupted"
            raise
        finally:
            self._finish(status)
        return self.state

    def run_round(self) -> RoundResult:
        """Run one round, and make it part of the state: all of it, or nothing if anything in it fails."""
        before = self.state
        with ExitStack() as failing:
            failing.callback(self._take_back, before)
            # 1.-3. Who takes part, and what do they answer? All of it again without those whose answers do not count.
            round = self._drawn(before)

            # 4. Each is sent the model with an order of its own; those who will not answer get no order.
            self._send(round)

            # 5.-7. They train; their updates cross back one by one, in cohort order, and are folded into the next model.
            watching = [callback for callback in self.callbacks.values() if callback.needs_updates]
            learns = self.selector.needs_updates
            round.keeps_updates = bool(watching) or (learns is not None and learns(before.selector))
            updates: Iterator[ClientUpdate] = failing.enter_context(closing(self._received(round)))
            fold = self._guarded(round)
            for merge in reversed(self._merging):
                fold = merge(round, fold)
            server, model = fold(round.server, before.model, updates)
            if not state.all_finite(model):
                raise BadUpdateError(
                    f"Expected a finite model after round {round.number}, but {type(self.aggregator).__name__} made NaN or "
                    "infinity of finite updates: lower the learning rate, of the clients or of the aggregator."
                )
            model = derive(model, self.facts.derived) if self.facts.derived else model
            self._laps.end("train")

            # 8. Those who asked for the updates see them, before they are freed.
            for callback in watching:
                callback.on_updates(self, round.updates)

            # 9. The round becomes part of the state.
            ids = torch.tensor([receipt.client_id for receipt in round.receipts], dtype=torch.int64)
            self.state = replace(
                before,
                round=round.number,
                model=model,
                aggregator=server,
                memory={**before.memory, **round.memory},
                disclosures=round.queries.disclosures,
                participation_counts=before.participation_counts.index_add(0, ids, torch.ones_like(ids)),
            )

            # 10. Measure the new model, let mechanisms and selector learn, tell everybody, and let the state be saved.
            round.metrics = _training_metrics(round.receipts, round.queries.ledger) | round.metrics
            for slot, after in self._after:
                if (after_it := after(round, self.state)) is not None:
                    self.state = replace(self.state, slots={**self.state.slots, slot: after_it})
            self._laps.end("measure")
            result = self._result(round)
            for callback in self.callbacks.values():
                callback.on_round_end(self, result)
            self.state = replace(self.state, callbacks={name: part.state_dict() for name, part in self.callbacks.items()})
            for callback in self.callbacks.values():
                callback.on_state_complete(self)
            failing.pop_all()
            return result

    def _drawn(self, before: FederationState) -> Round:
        """Return a round of which the cohort is known, and how it will end for each of it."""
        self.away, came = frozenset(), list[tuple[Query, int, Answer]]()
        self._laps = _Laps(time.perf_counter())
        while True:
            try:
                # 1. Who is able to take part?
                round = Round(
                    number=before.round + 1,
                    before=before,
                    facts=self.facts,
                    seed=self.seed,
                    cohort_size=self.cohort_size,
                    num_floats=partial(self._num_floats_crossing, before),
                    is_measured=self._is_measured,
                    away=self.away,
                    available=self._everybody,
                    num_wanted=self.cohort_size,
                    selection_seed=self.seed,
                    server=before.aggregator,
                    is_fedavg=before.round < self._fedavg_rounds,
                )
                for available in self._able[0]:
                    available(round)
                if round.away:
                    self._without_away(round, round.away)
                for available in self._able[1]:
                    available(round)

                # 2. Who does? What the selector asks of clients on its way is counted and remembered.
                round.queries = queries = QuerySession(
                    round=round.number,
                    available=round.available,
                    engine=self.engine,
                    sizes={"Y": self.facts.num_classes, "A": self.facts.num_attributes},
                    refuse=self._refuse_answers,
                    order=partial(self.order, before),
                    heard=partial(self._heard, round.number),
                    lap=self._laps.end,
                    disclosures=dict(before.disclosures),
                    came=came,
                    checks=self._asked,
                )
                context = SelectionContext(
                    round=round.number,
                    num_clients=self.num_clients,
                    cohort_size=self.cohort_size,
                    num_slots=min(round.num_wanted, len(round.available)),
                    available=round.available,
                    disclosed=queries.disclosures,
                    rng=rng.stream(round.selection_seed, "selection", round.number),
                    ask=queries.ask,
                    log_weights=round.log_weights,
                )
                if round.available:
                    round.cohort = self._checked(self.selector.select(before.selector, context), context)
                self._laps.end("select")

                # 3. Who will answer, and what does the server want to know of them beforehand?
                round.finished = dict.fromkeys(round.cohort, 1.0)
                for plan in self._planned:
                    plan(round)
                if alone := (queries.settled() if self.away else queries.received_model) - set(round.cohort):
                    self._count_models(queries, before, alone)
                return round
            except ClientsAway as fault:
                self.away |= fault.client_ids

    def _send(self, round: Round) -> None:
        """Make the orders of a round, and count what they are."""
        ledger = round.queries.ledger
        told = round.before if round.server is round.before.aggregator else replace(round.before, aggregator=round.server)
        for client_id, part in round.finished.items():
            task = self.order(told, client_id, part)
            ledger.floats_down += self._num_floats_sent(task.broadcast, client_id)
            if part > 0:
                round.tasks.append(task)
        for dispatch in self._dispatched:
            dispatch(round)
        train = {task.client_id for task in round.tasks}
        ledger.query_samples += sum(samples for client_id, samples in round.queries.begun.items() if client_id not in train)

    def _guarded(self, round: Round) -> Fold:
        """Return what makes the next model of a round's updates; without any, model and aggregator stay as they were."""
        fold = self._fedavg if round.is_fedavg else self._fold

        def guarded(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            updates = iter(updates)
            if first := list(itertools.islice(updates, 1)):
                # Popped, so that nothing here holds the first update while the others come.
                return fold(server, model, itertools.chain((first.pop() for _ in range(1)), updates))
            return self._without_updates(round, server)

        return guarded

    def _without_updates(self, round: Round, server: ServerState) -> tuple[ServerState, State]:
        """Return what a round leaves behind to which no update has come: what was there, unless the aggregator goes on."""
        if round.num_dropped > 1 or (round.num_dropped and not round.before.participation_counts.any()):
            self._nothing_left(f"a valid update in round {round.number}, but all {round.num_dropped} were dropped")
        if self.aggregator.goes_on and not round.is_fedavg:
            return self._fold(server, round.before.model, ())
        return round.before.aggregator, round.before.model

    def _result(self, round: Round) -> RoundResult:
        """Return what a round leaves behind, as far as it is known; later metrics of the round show in it."""
        return RoundResult(
            round=round.number,
            cohort=tuple(round.cohort),
            receipts=tuple(round.receipts),
            metrics=round.metrics,
            ledger=round.queries.ledger,
            seconds=self._laps.seconds,
            num_clients=self.num_clients,
            disclosed=tuple(round.queries.disclosed),
            durations=round.plan.durations if round.plan is not None else {},
            answers=round.queries.answers,
        )

    def _of_selector(self, round: Round, new: FederationState) -> None:
        """Measure what the round came to by the selector, which has not learnt from it yet."""
        assert self.selector.metrics is not None
        told = self.selector.metrics(new.selector, self._result(round))
        round.metrics |= {f"selector/{name}": value for name, value in told.items()}

    def _learnt(self, round: Round, new: FederationState) -> None:
        """Let the selector learn from the round."""
        assert self.selector.observe is not None
        self._laps.end("measure")
        handed: dict[str, Any] = {}
        result = self._result(round)
        if self.selector.observes_cohorts_alone:
            result = RoundResult(result.round, result.cohort, (), {}, Ledger(), {}, result.num_clients)
        if round.evaluator is not None and self.selector.judges is not None and (what := self.selector.judges()):
            handed["judge"] = round.evaluator.of(what)
        if self.selector.needs_change:
            sent = (*self.facts.parameters, *self.facts.buffers)
            handed["change"] = state.subtract({name: new.model[name] for name in sent}, round.before.model)
        draw = rng.stream(self.seed, "selector-learns", round.number)
        learnt = self.selector.observe(round.before.selector, result, round.updates, draw, **handed)
        self.state = replace(new, selector=learnt)
        self._laps.end("select")

    def _take_back(self, before: FederationState) -> None:
        """Return to a state, with what the callbacks kept then: the round after it has failed."""
        self.state = before
        for name in self.callbacks.keys() & before.callbacks.keys():  # a logger may have come since
            try:
                self.callbacks[name].load_state_dict(before.callbacks[name])
            except Exception as error:  # the round's own error tells more
                log.warning("The callback %s cannot return to the state before the round: %s", name, first_line(error))

    def _is_measured(self) -> bool:
        """Tell whether anything is measured after the round under way; without a measurement every round counts as such."""
        measuring = [part for part in self.callbacks.values() if isinstance(part, Measurement)]
        return not measuring or any(part.is_due(self, self.state.round) for part in measuring)

    def _measured(self, round: Round, new: FederationState) -> None:
        """Measure the new model, unless nothing does."""
        if self.callbacks or self._stopping:
            self._measure_all(round)

    def _measure_all(self, round: Round) -> None:
        """Have callbacks measure a round; those whose turn it is not wait until it is known whether the round is the last."""
        parts, number, queries = self.callbacks, round.number, round.queries
        due = {name for name, part in parts.items() if not (isinstance(part, Measurement) and not part.is_due(self, number))}
        measured = {name: self._measure(part, number, queries) for name, part in parts.items() if name in due}
        if self._stopping:
            self._stop_if_due(round, measured)
        measured |= {name: self._measure(part, number, queries) for name, part in parts.items() if name not in due}
        round.metrics |= merged({name: measured[name] for name in parts}, round.metrics)
        round.metrics |= _crossed(queries.ledger)  # with what their answers cost

    def _measure(self, part: Callback, round: int, asked: QuerySession) -> Mapping[str, float]:
        """Have a callback measure a round, and before that clients answer its question on the new model."""
        question = part.question()

        def order(client_id: int) -> ClientTask:
            return replace(self.order(self.state, client_id), round=round)

        if question is not None and isinstance(part, Measurement) and part.is_due(self, round):
            asked.lap("measure")
            # With the ledger and the lines of the round's other questions, whose orders were on the model before.
            fresh: dict[str, Any] = {
                "disclosures": dict(self.state.disclosures),
                "asked": {},
                "received_model": set(),
                "came": [],
            }
            queries = replace(asked, order=order, **fresh)
            part.on_answers(self, self._answers(queries, question))
            self._count_models(queries, self.state, queries.received_model)
            self.state = replace(self.state, disclosures=queries.disclosures)
        return measured_by(part, self, round)

    def _answers(self, queries: QuerySession, question: Query) -> Mapping[int, Any]:
        """Return what those who are available answer to a measurement's question; answers that do not count are left out."""
        clients = queries.available
        while True:
            try:
                answers = queries.ask(question, clients)
            except ClientsAway as fault:
                clients = [client for client in clients if client not in fault.client_ids]
            else:
                if len(clients) < len(queries.available):
                    queries.settled()
                return answers

    def _refuse_answers(self, round: int, query: Query, faults: Mapping[int, str]) -> None:
        """Have the clients away in the round whose answers do not count, or end the run, as ``on_bad_update`` says.

        Raises:
            BadUpdateError: naming the first client.
            ClientsAway: with all of them.
        """
        for client_id, fault in faults.items():
            self._refuse(f"an answer to the query {query.name} that counts", client_id, round, fault, "the client is away")
        raise ClientsAway(faults)

    def _refuse(self, what: str, client_id: int, round: int, fault: str, follows: str = "the update is dropped") -> None:
        """Raise for what a client has sent, or log what follows, as ``on_bad_update`` says."""
        message = f"Expected {what} from client {client_id} in round {round}, but {fault}"
        if self.on_bad_update == "raise":
            raise BadUpdateError(
                f"{message}: lower the learning rate, or leave such clients out by federation.on_bad_update=drop, which a "
                "resume takes too."
            )
        log.warning("%s; %s.", message, follows)

    def _nothing_left(self, expected: str) -> None:
        raise BadUpdateError(f"Expected {expected}: lower the learning rate, or see in the log what is wrong with them.")

    def _count_models(self, queries: QuerySession, state: FederationState, client_ids: Iterable[int]) -> None:
        """Count the models that clients were sent to answer on alone."""
        for client_id in client_ids:
            floats = self._num_floats_sent(self.sent(state, client_id), client_id)
            queries.ledger.query_floats_down += floats
            known = queries.asked[client_id]
            queries.asked[client_id] = known._replace(floats_down=known.floats_down + floats)

    def _stop_if_due(self, round: Round, measured: Mapping[str, Mapping[str, float]]) -> None:
        """Let mechanisms look at a round, and note down why it is the last if it is."""
        metrics = {**round.metrics, **{name: value for part in measured.values() for name, value in part.items()}}
        result = replace(self._result(round), metrics=metrics)
        reasons = [reason for stop in self._stopping if (reason := stop(round, result)) is not None]
        self.state = replace(self.state, stopped="; ".join(reasons))
        if reasons:
            log.info("The run ends with round %d: %s.", round.number, self.state.stopped)

    def order(self, before: FederationState, client_id: int, step_fraction: float = 1.0) -> ClientTask:
        """Return a client's order to train in the round after a state, as it is if the client finishes."""
        broadcast = self.aggregator.broadcast
        sent = broadcast(before.aggregator, before.model, client_id) if broadcast is not None else Broadcast(before.model)
        memory = before.memory.get(client_id, {})
        task = ClientTask(client_id, before.round + 1, self.seed, sent, memory, step_fraction)
        for outgoing in self._outgoing:
            task = outgoing(before, task)
        return task

    def sent(self, before: FederationState, client_id: int) -> Broadcast:
        """Return what a client is sent in the round after a state; one that never takes part is sent all of the model."""
        return self.order(before, client_id).broadcast

    def _num_floats_sent(self, broadcast: Broadcast, client_id: int) -> int:
        """Count a broadcast; tied tensors cross once, and personal ones before a client has any of its own."""
        has_own = self.facts.personal and self.state.participation_counts[client_id]
        model, own = broadcast.model, self._other_names | self.facts.personal if has_own else self._other_names
        sent = state.num_floats({name: model[name] for name in model if name not in own} if own else model)
        return sent + state.num_floats(broadcast.extras) if broadcast.extras else sent

    def _without_away(self, round: Round, away: Set[int]) -> None:
        """Leave out the clients whose answers do not count in this round."""
        round.available = [client_id for client_id in round.available if client_id not in away]
        if not round.available:
            self._nothing_left(f"an answer that counts in round {round.number}, but {len(away)} clients are away without one")

    def _num_floats_crossing(self, before: FederationState, client_id: int) -> tuple[int, int]:
        """Count what a client is sent in the round after a state, and what it sends back."""
        broadcast = self.sent(before, client_id)
        update = {name: broadcast.model[name] for name in (*self.facts.parameters, *self.facts.buffers)}
        return self._num_floats_sent(broadcast, client_id), state.num_floats(update) + state.num_floats(self.extras)

    def _checked(self, cohort: Sequence[int], context: SelectionContext) -> list[int]:
        """Hold a selector to its contract: as many distinct available clients as there are places, or all available."""
        strangers = sorted(set(cohort).difference(context.available))
        sizes = range(len(context.available) + 1) if self.selector.sizes_itself else (context.num_slots, len(context.available))
        if len(cohort) not in sizes or len(set(cohort)) != len(cohort) or strangers:
            raise SelectionError(
                f"Expected {type(self.selector).__name__} to select {context.num_slots} distinct available clients, or all "
                f"{len(context.available)}, in round {context.round}, but got {cohort}"
                f"{f', where {strangers} are away' if strangers else ''}: fix its `select`."
            )
        return [int(client_id) for client_id in cohort]

    def _received(self, round: Round) -> Generator[ClientUpdate, None, None]:
        """Yield the valid updates; note what stays of each when its tensors are freed."""
        seen: dict[str, tuple[torch.Tensor, int]] = {}
        tasks, queries = round.tasks, round.queries
        orders = enumerate(tasks, 1)
        for update in self._apart(self.engine.run(tasks)):
            position, task = next(orders)
            self._heard(round.number, position, len(tasks), "train")
            fault, num_floats = self._verified(update, task, self.facts, self.extras, seen)
            queries.ledger.floats_up += num_floats
            if fault is not None:
                self._refuse("a finite update of the model's shapes", task.client_id, round.number, fault)
                round.num_dropped += 1
                continue
            for incoming in self._incoming:
                update = incoming(round, task, update)
            if update.memory:
                round.memory[task.client_id] = update.memory
            if update.silent is True:
                continue
            measured, client_id = update.metrics, task.client_id
            answers = {query: of[client_id] for query, of in queries.answers.items() if client_id in of}
            receipt = (update.num_samples, update.num_steps, float(measured["loss_sum"]), measured["num_seen"], answers)
            round.receipts.append(ClientReceipt(client_id, *receipt))
            if round.keeps_updates:
                round.updates.append(update)
            yield update
            del update  # or it would be held while the next is waited for
        assert next(orders, None) is None, "an engine yields an update for each order"

    def _heard(self, round: int, position: int, number: int, what: str) -> None:
        """Tell the callbacks that another client has sent something, unless somebody has asked for an end."""
        self._check_stop()
        for callback in self.callbacks.values():
            callback.on_client_end(round, position, number, what)

    def _check_stop(self) -> None:
        if self._stop_signal is not None:
            signal, self._stop_signal = self._stop_signal, None  # whoever catches it may call `fit` again
            raise Interrupted(signal)

    def _finish(self, status: str) -> None:
        """Tell every callback that it is over, even if one of them fails."""
        failures = []
        for name, callback in self.callbacks.items():
            try:
                callback.on_fit_end(self, status)
            except Exception as error:
                log.exception("The callback %s failed at the end of the run.", name)
                failures.append(error)
        self.engine.close()
        if failures and status != "failed":  # a failure in flight already has the word
            raise failures[0]


@dataclass(slots=True)
class _Laps:
    """The wall-clock time of a round by phase."""

    last: float  # the time at the end of the last lap
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("ask", "select", "train", "measure"), 0.0))

    def end(self, phase: str) -> None:
        """Book the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now


def _training_metrics(receipts: Sequence[ClientReceipt], ledger: Ledger) -> dict[str, float]:
    """Add up what the clients measured; sums are divided only here (law 8)."""
    num_seen = sum([receipt.num_seen for receipt in receipts])
    loss_sum = sum([receipt.loss_sum for receipt in receipts])
    return {
        "train/loss": loss_sum / num_seen if num_seen else float("nan"),
        "train/num_steps": sum([receipt.num_steps for receipt in receipts]),
        **_crossed(ledger),
    }


def _crossed(ledger: Ledger) -> dict[str, float]:
    """Return what crossed, as metrics."""
    return {f"comm/{name}": value for name, value in asdict(ledger).items()}
