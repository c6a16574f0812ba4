"""The round loop and the saved state: the file to read first.

A round is a pure function of the saved state and the round number (law 1). It runs in ten steps, numbered below; every draw in
it comes from ``rng.stream(seed, purpose, round, ...)``, and everything that crosses between server and clients is counted.
Rounds are counted from 1. The file is a long one, so that a round and the state that it changes are read in one go.
"""

import itertools
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from fedfacet import rng, state
from fedfacet.accounting import Accounting, check_room
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.arguments import check_choice, check_whole
from fedfacet.asking import Asking, ClientsAway
from fedfacet.callbacks.base import Callback, Measurement, measured_by, merged
from fedfacet.clock import Clock, Plan
from fedfacet.derived import derive, other_names
from fedfacet.engines.base import Engine
from fedfacet.errors import BadUpdateError, Interrupted, SelectionError, first_line
from fedfacet.flights import Flights
from fedfacet.folding import fold_of
from fedfacet.judging import Judge
from fedfacet.ours import is_ours
from fedfacet.participation.base import Participation, available_of, log_weights_of, outcome_of
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.schedulers.base import Scheduler, factor_of
from fedfacet.selectors.base import ClientSelector
from fedfacet.storage.fitting import check_fits
from fedfacet.submodels.parts import Parts
from fedfacet.termination.base import Termination
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
    ServerData,
    State,
)
from fedfacet.updates import checked

log = logging.getLogger(__name__)

_Drawn: TypeAlias = tuple[Asking, list[int], dict[int, float], Plan | None, Mapping[int, Any]]
"""What was asked, the cohort, which part of its steps each client finishes, how the round will go, and what clients report."""


class Federation:
    """A server, its clients behind an engine, and the rounds between them.

    Args:
        facts: the initial model, the number of clients, and what these send.
        partition_digest: of the partition, saved so that a checkpoint knows what it belongs to.
        engine: runs the clients; already set up.
        selector: says who takes part.
        aggregator: makes the next model.
        participation: says who is able to take part and how a client's round may end; ``None`` for everybody, always.
        rounds: how many rounds to run, 1 or larger.
        cohort_size: how many clients a round asks for by default, between 1 and the number of clients.
        seed: of initial weights, selection and local training; 0 or larger.
        on_bad_update: ``"raise"`` or ``"drop"`` an update that is malformed or holds NaN or infinity.
        callbacks: name -> callback, called in this order.
        scheduler: of the clients' learning rate; ``None`` for a constant one.
        parts: which part of the model each client holds; ``None`` for all of it.
        disclosure: what clients may be asked for; ``None`` for anything.
        server_data: samples that the server owns; for aggregators and selectors that judge models.
        privacy: the noise that the server adds to the sum of updates; ``None`` for none.
        accounting: what noise, of the server or of the clients, is counted; ``None`` without any.
        clock: what rounds take on clients' devices; ``None`` where they take nothing.
        termination: what ends ``fit`` before all rounds are done; ``None`` for nothing.
        flights: says whose updates a round takes, of clients that train while the server goes on; goes with a clock. ``None``
            for those of its cohort.

    Raises:
        ValueError: if a number is out of range.
    """

    _verified = staticmethod(checked)  # a federation whose updates are checked elsewhere has another

    def __init__(
        self,
        *,
        facts: Facts,
        partition_digest: str,
        engine: Engine,
        selector: ClientSelector,
        aggregator: Aggregator,
        participation: Participation | None = None,
        rounds: int,
        cohort_size: int,
        seed: int,
        on_bad_update: str = "raise",
        callbacks: Mapping[str, Callback] | None = None,
        scheduler: Scheduler | None = None,
        parts: Parts | None = None,
        disclosure: DisclosurePolicy | None = None,
        server_data: ServerData | None = None,
        privacy: CentralDP | None = None,
        accounting: Accounting | None = None,
        clock: Clock | None = None,
        termination: Termination | None = None,
        flights: Flights | None = None,
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
        self.participation = participation
        self.rounds = rounds
        self.cohort_size = cohort_size
        self.seed = seed
        self.on_bad_update = on_bad_update
        self.callbacks = dict(callbacks or {})
        self.scheduler = scheduler
        self.parts = parts
        self.disclosure = disclosure
        self.server_data = server_data
        self.privacy = privacy
        self.accounting = accounting
        self.clock = clock
        self.termination = termination
        self.flights = flights
        self.extras = aggregator.extras(facts)
        self._other_names = other_names(facts.derived)
        self._question = aggregator.report() if aggregator.report is not None else None
        self._judges = aggregator.judges is not None and aggregator.judges() is not None
        self._selector_judges = selector.judges() if selector.judges is not None else None
        if (self._judges or self._selector_judges) and server_data is None:
            raise ValueError("Expected `server_data` for an aggregator or a selector that judges models, but got none.")
        more_than_models = bool(self.extras) or aggregator.broadcast is not None
        self._fedavg_rounds = 0 if more_than_models else selector.fedavg_rounds
        self._fedavg = FedAvg(weighting=aggregator.weighting, buffers=aggregator.buffers).aggregate
        self._fold = fold_of(aggregator)
        # These are at work between two clients; the user's own may draw from the generators that clients draw from.
        heard = [one for one in self.callbacks.values() if type(one).on_client_end is not Callback.on_client_end]
        clients = None if all(map(is_ours, (aggregator, *heard))) else getattr(engine, "clients", None)
        self._apart = partial(rng.apart, device=clients.device, others=clients.draws_elsewhere) if clients is not None else iter
        # Whoever knows who was drawn knows more than an epsilon of sampled clients allows for.
        self._selection_seed = privacy.seed(seed) if privacy is not None else seed
        self._stop_signal: int | None = None
        self.away: frozenset[int] = frozenset()  # in this round, as their answers do not count
        self._partition_digest = partition_digest
        self.state = self._first_state()
        if accounting is not None:
            check_room(accounting, self.state)

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
            scheduler=self.scheduler.init() if self.scheduler is not None else {},
            callbacks={name: callback.state_dict() for name, callback in self.callbacks.items()},
            partition_digest=self._partition_digest,
            data_digest=self.facts.data_digest,
            frozen_digest=self.facts.frozen_digest,
            devices=self.clock.init() if self.clock is not None else {},
            privacy=self.accounting.init() if self.accounting is not None else {},
            termination=self.termination.init() if self.termination is not None else {},
            flights=self.flights.init() if self.flights is not None else {},
        )

    def restore(self, saved: FederationState) -> None:
        """Go back to a saved state; the next round is ``saved.round + 1``.

        Raises:
            CheckpointError: if the state belongs to another data set or partition, or to other parts.
        """
        check_fits(saved, self._first_state())
        if self.clock is not None:
            self.clock.check(saved.devices)
        if self.accounting is not None:
            self.accounting.privacy.check(saved.privacy)
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
        before, round, notes = self.state, self.state.round + 1, _Notes(time.perf_counter())
        with ExitStack() as failing:
            failing.callback(self._take_back, before)
            # 1.-3. Who takes part, and what do they answer? All of it anew without those whose answers do not count.
            asking, cohort, finished, plan, reports = self._drawn(before, round, notes)
            told = before
            if self.aggregator.prepare is not None and cohort:
                told = replace(before, aggregator=self.aggregator.prepare(before.aggregator, reports))

            # 4. Each is sent the model with an order of its own; those who will not answer get no order.
            tasks = []
            for client_id, part in finished.items():
                task = self._task(client_id, told, part)
                asking.ledger.floats_down += self._num_floats_sent(task.broadcast, client_id)
                if part > 0:
                    tasks.append(task)
            flights = before.flights
            if self.flights is not None and plan is not None:
                flights, tasks, plan = self._turned(self.flights, tasks, plan, asking)
            train = {task.client_id for task in tasks}
            asking.ledger.query_samples += sum(samples for client_id, samples in asking.begun.items() if client_id not in train)

            # 5.-7. They train; their updates cross back one by one, in cohort order, and are folded into the next model.
            watching = [callback for callback in self.callbacks.values() if callback.needs_updates]
            learns = self.selector.needs_updates
            notes.keeps_updates = bool(watching) or (learns is not None and learns(before.selector))
            updates: Iterator[ClientUpdate] = failing.enter_context(closing(self._received(tasks, asking, notes)))
            judge = None
            if self.server_data is not None and (self._judges or self._selector_judges):
                judge = Judge(self.engine, self.server_data, before.model)
            if judge is not None and self._judges and round > self._fedavg_rounds:
                updates = judge.judged(updates)
            if self.privacy is not None:
                updates = iter([self._released(self.privacy, updates, notes)])
            server, model, first = before.aggregator, before.model, list(itertools.islice(updates, 1))
            fold = self._fedavg if round <= self._fedavg_rounds else self._fold
            if first:
                fold = fold if self.parts is None else partial(self.parts.aggregate, fold, round)
                # Popped, so that nothing here holds the first update while the others come.
                server, model = fold(told.aggregator, model, itertools.chain((first.pop() for _ in range(1)), updates))
            elif notes.num_dropped > 1 or (notes.num_dropped and not before.participation_counts.any()):
                self._nothing_left(f"a valid update in round {round}, but all {notes.num_dropped} were dropped")
            elif self.aggregator.goes_on and fold is self._fold:  # else no update leaves model and aggregator as they were
                server, model = fold(told.aggregator, model, ())
            if not state.all_finite(model):
                raise BadUpdateError(
                    f"Expected a finite model after round {round}, but {type(self.aggregator).__name__} made NaN or infinity "
                    "of finite updates: lower the learning rate, of the clients or of the aggregator."
                )
            model = derive(model, self.facts.derived) if self.facts.derived else model
            notes.lap("train")

            # 8. Those who asked for the updates see them, before they are freed.
            for callback in watching:
                callback.on_updates(self, notes.updates)

            # 9. The round becomes part of the state.
            ids = torch.tensor([receipt.client_id for receipt in notes.receipts], dtype=torch.int64)
            self.state = replace(
                before,
                round=round,
                model=model,
                aggregator=server,
                memory={**before.memory, **notes.memory},
                disclosures=asking.disclosures,
                flights=flights,
                participation_counts=before.participation_counts.index_add(0, ids, torch.ones_like(ids)),
            )

            # 10. Measure the new model, let scheduler and selector learn, tell everybody, and let the state be saved.
            metrics = _training_metrics(notes.receipts, asking.ledger)
            if judge is not None:
                metrics["server/samples"] = judge.num_samples
            metrics |= self._timed(before, plan, tasks, asking) if plan is not None else {}
            result = RoundResult(
                round=round,
                cohort=tuple(cohort),
                receipts=tuple(notes.receipts),
                metrics=metrics,
                ledger=asking.ledger,
                seconds=notes.seconds,
                num_clients=self.num_clients,
                disclosed=tuple(asking.disclosed),
                durations=plan.durations if plan is not None else {},
                answers=asking.answers,
            )
            metrics |= self._of_selector(result) if self.selector.metrics is not None else {}
            metrics |= self._accounted(self.accounting, before, tasks, asking, notes) if self.accounting is not None else {}
            if self.callbacks or self.termination is not None:
                metrics |= self._measurements(result, asking) | _crossed(result.ledger)  # with what their answers cost
                result = replace(result, disclosed=tuple(asking.disclosed))  # to measurements too
            if self.scheduler is not None:
                metrics["train/lr_factor"] = self.lr_factor(round)
                self.state = replace(self.state, scheduler=self.scheduler.observe(before.scheduler, metrics))
            notes.lap("measure")
            if self.selector.observe is not None:
                self.state = replace(self.state, selector=self._learnt(before, result, notes, judge))
                if judge is not None:  # it may have passed samples since the round was measured
                    metrics["server/samples"] = judge.num_samples
            notes.lap("select")
            for callback in self.callbacks.values():
                callback.on_round_end(self, result)
            self.state = replace(self.state, callbacks={name: part.state_dict() for name, part in self.callbacks.items()})
            for callback in self.callbacks.values():
                callback.on_state_complete(self)
            failing.pop_all()
            return result

    def _drawn(self, before: FederationState, round: int, notes: "_Notes") -> _Drawn:
        """Return what was asked, the cohort, how the round will end for each of it, and what it reports."""
        self.away = frozenset()
        while True:
            try:
                # 1. Who is able to take part?
                available, places, log_weights = self._everybody, self.cohort_size, None
                if self.participation is not None or self.clock is not None or self.accounting is not None or self.away:
                    available, places, log_weights = self._able(before)

                # 2. Who does? What the selector asks of clients on its way is counted and remembered.
                asking = Asking(
                    round=round,
                    available=available,
                    engine=self.engine,
                    sizes={"Y": self.facts.num_classes, "A": self.facts.num_attributes},
                    refuse=self._refuse_answers,
                    order=lambda client_id: self._task(client_id, before),
                    heard=partial(self._heard, round),
                    lap=notes.lap,
                    disclosures=dict(before.disclosures),
                    came=notes.came,
                    disclosure=self.disclosure,
                    accounting=self.accounting,
                )
                context = SelectionContext(
                    round=round,
                    num_clients=self.num_clients,
                    cohort_size=self.cohort_size,
                    places=places,
                    available=available,
                    disclosed=asking.disclosures,
                    rng=rng.stream(self._selection_seed, "selection", round),
                    ask=asking.ask,
                    log_weights=log_weights,
                )
                cohort = self._checked(self.selector.select(before.selector, context), context) if available else []
                notes.lap("select")

                # 3. Who will answer, and what does the aggregator want to know of them beforehand?
                finished, plan = dict.fromkeys(cohort, 1.0), None
                if self.participation is not None or self.clock is not None:
                    finished, plan = self._outcomes(before, cohort)
                reports: Mapping[int, Any] = {}
                if self._question is not None and round > self._fedavg_rounds:
                    trains = [client_id for client_id, part in finished.items() if part > 0]
                    reports = asking.report(self._question, available if self.aggregator.asks_everybody else trains)
                if alone := (asking.settled() if self.away else asking.received_model) - set(cohort):
                    self._count_models(asking, before, alone)
                return asking, cohort, finished, plan, reports
            except ClientsAway as fault:
                self.away |= fault.client_ids

    def _timed(self, before: FederationState, plan: Plan, tasks: Sequence[ClientTask], asking: Asking) -> dict[str, float]:
        """Let the time of a round pass on the clients' devices, and return how long it was and how late its updates came."""
        assert self.clock is not None
        round, late = self.state.round, {}
        if self.flights is not None:
            late["train/staleness"] = sum(round - task.round for task in tasks) / len(tasks) if tasks else float("nan")
        clock, taken = self.clock.advance(before.devices, plan, asking.asked, asking.ledger, seed=self.seed, round=round)
        self.state = replace(self.state, devices=clock)
        return late | taken

    def _of_selector(self, result: RoundResult) -> dict[str, float]:
        """Return what the round came to by the selector, which has not learnt from it yet."""
        assert self.selector.metrics is not None
        return {f"selector/{name}": value for name, value in self.selector.metrics(self.state.selector, result).items()}

    def _released(self, privacy: CentralDP, updates: Iterator[ClientUpdate], notes: "_Notes") -> ClientUpdate:
        """Return what the aggregator gets in the place of a round's updates."""
        shapes, before = {name: self.state.model[name] for name in self.facts.parameters}, self.state
        planned = {"expected": self.cohort_size, "seed": self.seed, "round": before.round + 1}
        notes.privacy, released = privacy.released(before.privacy, updates, shapes, **planned)
        return released

    def _accounted(
        self, accounting: Accounting, before: FederationState, tasks: Sequence[ClientTask], asking: Asking, notes: "_Notes"
    ) -> dict[str, float]:
        """Book what a round has spent of privacy, and return what it comes to so far."""
        known = before if self.privacy is None else replace(before, privacy=notes.privacy)
        self.state = replace(self.state, privacy=accounting.after(known, tasks, asking.disclosed))
        for client_id in accounting.stopping(before, self.state):
            log.info("Client %d takes no further part: its epsilon would exceed its limit.", client_id)
        measuring = [part for part in self.callbacks.values() if isinstance(part, Measurement)]
        due = not measuring or any(part.is_due(self, self.state.round) for part in measuring)
        return accounting.metrics(before, self.state, due=due)

    def _learnt(self, before: FederationState, result: RoundResult, notes: "_Notes", judge: Judge | None) -> dict[str, Any]:
        """Return the selector's state after a round."""
        assert self.selector.observe is not None
        handed: dict[str, Any] = {}
        if self.selector.observes_cohorts_alone:
            result = RoundResult(result.round, result.cohort, (), {}, Ledger(), {}, result.num_clients)
        if judge is not None and self._selector_judges:
            handed["judge"] = judge.of(self._selector_judges)
        if self.selector.needs_change:
            sent = (*self.facts.parameters, *self.facts.buffers)
            handed["change"] = state.subtract({name: self.state.model[name] for name in sent}, before.model)
        draw = rng.stream(self.seed, "selector-learns", result.round)
        return self.selector.observe(before.selector, result, notes.updates, draw, **handed)

    def _take_back(self, before: FederationState) -> None:
        """Return to a state, with what the callbacks kept then: the round after it has failed."""
        self.state = before
        for name in self.callbacks.keys() & before.callbacks.keys():  # a logger may have come since
            try:
                self.callbacks[name].load_state_dict(before.callbacks[name])
            except Exception as error:  # the round's own error tells more
                log.warning("The callback %s cannot return to the state before the round: %s", name, first_line(error))

    def _measurements(self, result: RoundResult, asking: Asking) -> dict[str, float]:
        """Have callbacks measure a round; those whose turn it is not wait until it is known whether the round is the last."""
        parts, round = self.callbacks, result.round
        due = {name for name, part in parts.items() if not (isinstance(part, Measurement) and not part.is_due(self, round))}
        measured = {name: self._measure(part, round, asking) for name, part in parts.items() if name in due}
        if self.termination is not None:
            self._end_if_due(self.termination, result, measured)
        measured |= {name: self._measure(part, round, asking) for name, part in parts.items() if name not in due}
        metrics = merged({name: measured[name] for name in parts}, result.metrics)
        if self.termination is not None:
            self.termination.check({**result.metrics, **metrics})
        return metrics

    def _measure(self, part: Callback, round: int, asked: Asking) -> Mapping[str, float]:
        """Have a callback measure a round, and before that clients answer its question on the new model."""
        question = part.question()

        def order(client_id: int) -> ClientTask:
            return replace(self._task(client_id, self.state), round=round)

        if question is not None and isinstance(part, Measurement) and part.is_due(self, round):
            asked.lap("measure")
            # With the ledger and the lines of the round's other questions, whose orders were on the model before.
            fresh: dict[str, Any] = {
                "disclosures": dict(self.state.disclosures),
                "asked": {},
                "received_model": set(),
                "came": [],
            }
            asking = replace(asked, order=order, **fresh)
            part.on_answers(self, self._answers(asking, question))
            self._count_models(asking, self.state, asking.received_model)
            self.state = replace(self.state, disclosures=asking.disclosures)
        return measured_by(part, self, round)

    def _answers(self, asking: Asking, question: Query) -> Mapping[int, Any]:
        """Return what those who are available answer to a measurement's question; answers that do not count are left out."""
        clients = asking.available
        while True:
            try:
                answers = asking.ask(question, clients)
            except ClientsAway as fault:
                clients = [client for client in clients if client not in fault.client_ids]
            else:
                if len(clients) < len(asking.available):
                    asking.settled()
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

    def _count_models(self, asking: Asking, state: FederationState, client_ids: Iterable[int]) -> None:
        """Count the models that clients were sent to answer on alone."""
        for client_id in client_ids:
            floats = self._num_floats_sent(self.sent(state, client_id), client_id)
            asking.ledger.query_floats_down += floats
            known = asking.asked[client_id]
            asking.asked[client_id] = known._replace(floats_down=known.floats_down + floats)

    def _end_if_due(self, termination: Termination, result: RoundResult, measured: Mapping[str, Mapping[str, float]]) -> None:
        """Let the termination look at a round, and note down why it is the last if it is."""
        metrics = {**result.metrics, **{name: value for part in measured.values() for name, value in part.items()}}
        server, reason = termination.observe(self.state.termination, replace(result, metrics=metrics))
        self.state = replace(self.state, termination=server, stopped=reason or "")
        if reason is not None:
            log.info("The run ends with round %d: %s.", result.round, reason)

    def sent(self, state: FederationState, client_id: int) -> Broadcast:
        """Return what a client is sent in the round after a state; one that never takes part is sent all of the model."""
        broadcast = Broadcast(state.model)
        if self.aggregator.broadcast is not None:
            broadcast = self.aggregator.broadcast(state.aggregator, state.model, client_id)
        if self.parts is None or client_id >= self.num_clients:
            return broadcast
        return replace(broadcast, model=self.parts.cut(broadcast.model, client_id, state.round + 1))

    def lr_factor(self, round: int) -> float:
        """Return by what the clients' learning rate is multiplied in the round to come."""
        return factor_of(self.scheduler, self.state.scheduler, round) if self.scheduler is not None else 1.0

    def _task(self, client_id: int, state: FederationState, step_fraction: float = 1.0) -> ClientTask:
        """Return a client's order to train in the round after a state, as it is if the client finishes."""
        round, sent, memory = state.round + 1, self.sent(state, client_id), state.memory.get(client_id, {})
        return ClientTask(client_id, round, self.seed, sent, memory, step_fraction, self.lr_factor(round))

    def _num_floats_sent(self, broadcast: Broadcast, client_id: int) -> int:
        """Count a broadcast; tied tensors cross once, and personal ones before a client has any of its own."""
        has_own = self.facts.personal and self.state.participation_counts[client_id]
        model, own = broadcast.model, self._other_names | self.facts.personal if has_own else self._other_names
        sent = state.num_floats({name: model[name] for name in model if name not in own} if own else model)
        return sent + state.num_floats(broadcast.extras) if broadcast.extras else sent

    def _able(self, before: FederationState) -> tuple[Sequence[int], int, Any]:
        """Return who is able to take part, how many shall, and what weighs their chances."""
        available, log_weights, round = self._everybody, None, before.round + 1
        if self.participation is not None:
            available = available_of(self.participation, self.num_clients, rng.stream(self.seed, "available", round))
            if self.participation.gives_weights:
                draw = rng.stream(self.seed, "participation-weights", round)
                log_weights = log_weights_of(self.participation, self.num_clients, draw)
        if self.accounting is not None:
            available = self.accounting.admitted(before, available)
        available = [client_id for client_id in available if client_id not in self.away] if self.away else available
        if self.away and not available:
            self._nothing_left(f"an answer that counts in round {round}, but {len(self.away)} clients are away without one")
        places = min(self.cohort_size, len(available))
        if self.clock is not None:
            available = self.clock.available(before.devices, available)
            places = self.clock.places(self.cohort_size, len(available))
        if self.flights is not None:
            available = self.flights.free(before.flights, available)
            places = self.flights.places(before.flights, len(available))
        return available, places, log_weights

    def _outcomes(self, before: FederationState, cohort: Sequence[int]) -> tuple[dict[int, float], Plan | None]:
        """Return which part of its steps each client will finish, and how the round will go on their devices."""
        finished = dict.fromkeys(cohort, 1.0)
        if self.participation is not None:
            for client_id in cohort:
                draws = partial(rng.stream, self.seed, "outcome", before.round + 1, client_id)
                finished[client_id] = outcome_of(self.participation, client_id, draws)
        if self.clock is None:
            return finished, None
        crossing = {client_id: self._num_floats_crossing(before, client_id) for client_id in finished}
        plan = self.clock.plan(before.devices, finished, crossing, seed=self.seed, round=before.round + 1)
        return dict(plan.finished), plan

    def _turned(
        self, flights: Flights, tasks: Sequence[ClientTask], plan: Plan, asking: Asking
    ) -> tuple[dict[str, Any], list[ClientTask], Plan]:
        """Send clients off, and return the orders that are left, those whose updates the round takes, and how it will go."""
        assert self.clock is not None
        questions = self.clock.asking(asking.asked, seed=self.seed, round=self.state.round + 1)[0]
        now = self.state.devices["clock"] + questions
        return flights.turn(self.state.flights, tasks, plan, now=now, seed=self.seed, memory=self.state.memory)

    def _num_floats_crossing(self, before: FederationState, client_id: int) -> tuple[int, int]:
        """Count what a client is sent in the round after a state, and what it sends back."""
        broadcast = self.sent(before, client_id)
        update = {name: broadcast.model[name] for name in (*self.facts.parameters, *self.facts.buffers)}
        return self._num_floats_sent(broadcast, client_id), state.num_floats(update) + state.num_floats(self.extras)

    def _checked(self, cohort: Sequence[int], context: SelectionContext) -> list[int]:
        """Hold a selector to its contract: as many distinct available clients as there are places, or all available."""
        strangers = sorted(set(cohort).difference(context.available))
        sizes = range(len(context.available) + 1) if self.selector.sizes_itself else (context.places, len(context.available))
        if len(cohort) not in sizes or len(set(cohort)) != len(cohort) or strangers:
            raise SelectionError(
                f"Expected {type(self.selector).__name__} to select {context.places} distinct available clients, or all "
                f"{len(context.available)}, in round {context.round}, but got {cohort}"
                f"{f', where {strangers} are away' if strangers else ''}: fix its `select`."
            )
        return [int(client_id) for client_id in cohort]

    def _received(self, tasks: Sequence[ClientTask], asking: Asking, notes: "_Notes") -> Generator[ClientUpdate, None, None]:
        """Yield the valid updates; note what stays of each when its tensors are freed."""
        seen: dict[str, tuple[torch.Tensor, int]] = {}
        orders = enumerate(tasks, 1)
        for update in self._apart(self.engine.run(tasks)):
            position, task = next(orders)
            self._heard(self.state.round + 1, position, len(tasks), "train")
            fault, num_floats = self._verified(update, task, self.facts, self.extras, seen)
            asking.ledger.floats_up += num_floats
            if fault is None and self._question is not None:
                update = replace(update, report=asking.disclosures.get(self._question.name, {}).get(task.client_id))
            if fault is not None:
                self._refuse("a finite update of the model's shapes", task.client_id, self.state.round + 1, fault)
                notes.num_dropped += 1
                continue
            if self.flights is not None:
                update = replace(update, staleness=self.state.round + 1 - task.round)
            if update.memory:
                notes.memory[task.client_id] = update.memory
            if update.silent is True:
                continue
            measured, client_id = update.metrics, task.client_id
            answers = {query: of[client_id] for query, of in asking.answers.items() if client_id in of}
            receipt = (update.num_samples, update.num_steps, float(measured["loss_sum"]), measured["num_seen"], answers)
            notes.receipts.append(ClientReceipt(client_id, *receipt))
            if notes.keeps_updates:
                notes.updates.append(update)
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
class _Notes:
    """What is noted down while a round is under way."""

    last: float  # the time at the end of the last lap
    keeps_updates: bool = False
    num_dropped: int = 0
    privacy: dict[str, Any] = field(default_factory=dict)  # the state of the server's noise after the round
    updates: list[ClientUpdate] = field(default_factory=list)
    receipts: list[ClientReceipt] = field(default_factory=list)
    memory: dict[int, State] = field(default_factory=dict)
    came: list[tuple[Query, int, Answer]] = field(default_factory=list)  # to questions, also before the round began anew
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("ask", "select", "train", "measure"), 0.0))

    def lap(self, phase: str) -> None:
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
