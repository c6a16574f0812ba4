"""One round, from the clients who are able to take part to the state with the new model: the file to read first.

A round is a pure function of the saved state and the round number (law 1). It runs in ten steps, numbered below; every draw in
it comes from ``rng.stream(seed, purpose, round, ...)``, and everything that crosses between server and clients is counted.
Whatever else takes part in a round is a ``Mechanism``: each has its file, and none is known here by name.
"""

import itertools
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fedfacet import rng, state
from fedfacet.algorithm import Algorithm, Verbs
from fedfacet.derived import derive
from fedfacet.errors import BadUpdateError, SelectionError
from fedfacet.mechanism import Fold, Round
from fedfacet.query_session import ClientsAway, QuerySession
from fedfacet.records import ClientReceipt, FederationState, Ledger, RoundResult
from fedfacet.server import Server
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, SelectionContext, ServerState, State

log = logging.getLogger(__name__)

_AWAY = 25
"""From this rank on, mechanisms see no client whose answers do not count in the round."""


def run_round(federation: Server) -> RoundResult:
    """Run one round, and make it part of the state: all of it, or nothing if anything in it fails."""
    before, chain = federation.state, federation.chain
    with ExitStack() as failing:
        failing.callback(federation.roll_back, before)
        # 1.-3. Who takes part, and what do they answer? All of it again without those whose answers do not count.
        round = _drawn(federation, before)

        # 4. Each is sent the model with an order of its own; those who will not answer get no order.
        _send(federation, round)

        # 5.-7. They train; their updates cross back one by one, in cohort order, and are folded into the next model.
        updates: Iterator[ClientUpdate] = failing.enter_context(closing(_received(federation, round, round.tasks)))
        fold = _guarded(round)
        for merge in chain.merge:
            fold = merge(round, fold)
        server, model = fold(round.server, before.model, updates)
        if not state.all_finite(model):
            raise BadUpdateError(
                f"Expected a finite model after round {round.number}, but {type(round.aggregator).__name__} made NaN or "
                "infinity of finite updates: lower the learning rate, of the clients or of the aggregator."
            )
        model = derive(model, federation.facts.derived) if federation.facts.derived else model
        round.lap("train")

        # 8. The round becomes part of the state.
        ids = torch.tensor([receipt.client_id for receipt in round.receipts], dtype=torch.int64)
        federation.state = replace(
            before,
            round=round.number,
            model=model,
            aggregator=server,
            memory={**before.memory, **round.memory},
            disclosures=round.queries.disclosures,
            participation_counts=before.participation_counts.index_add(0, ids, torch.ones_like(ids)),
        )

        # 9. Measure the new model, and let mechanisms and selector learn; each has a slot of the state.
        round.metrics = _training_metrics(round.receipts, round.queries.ledger) | round.metrics
        for slot, after in chain.after:
            if (kept := after(round, federation.state)) is not None:
                federation.state = federation.state.with_slot(slot, kept)
        round.lap("measure")

        # 10. Tell everybody, and let the state be saved.
        result = result_of(round)
        for complete in chain.complete:
            complete(federation, result)
        failing.pop_all()
        return result


def _drawn(federation: Server, before: FederationState) -> Round:
    """Return a round of which the cohort is known, and how it will end for each of it."""
    away, came, laps = frozenset[int](), list[tuple[Query, int, Answer]](), _Laps(time.perf_counter())
    while True:
        try:
            # 1. Who is able to take part?
            round = Round(
                number=before.round + 1,
                before=before,
                federation=federation,
                lap=laps.end,
                seconds=laps.seconds,
                away=away,
                available=range(federation.num_clients),  # of a million clients no list is made
                num_wanted=federation.cohort_size,
                selection_seed=federation.seed,
                server=before.aggregator,
                aggregator=federation.aggregator,
            )
            for rank, available in federation.chain.available:
                if away and rank >= _AWAY:
                    _leave_out(round, away)
                available(round)
            if away:
                _leave_out(round, away)

            # 2. Who does? What the selector asks of clients on its way is counted and remembered.
            round.queries = queries = QuerySession(
                round=round.number,
                available=round.available,
                engine=federation.engine,
                sizes={"Y": federation.facts.num_classes, "A": federation.facts.num_attributes},
                refuse=federation.refuse_answers,
                order=partial(federation.order, before),
                progress=partial(federation.progress, round.number),
                lap=round.lap,
                disclosures=dict(before.disclosures),
                came=came,
                checks=federation.chain.ask,
            )
            context = SelectionContext(
                round=round.number,
                num_clients=federation.num_clients,
                cohort_size=federation.cohort_size,
                num_slots=min(round.num_wanted, len(round.available)),
                available=round.available,
                disclosed=queries.disclosures,
                rng=rng.stream(round.selection_seed, "selection", round.number),
                ask=queries.ask,
                log_weights=round.log_weights,
            )
            if round.available:
                round.cohort = _checked(federation, federation.selector.select(before.selector, context), context)
            round.lap("select")

            # 3. Who will answer, and what does the server want to know of them beforehand?
            round.finished = dict.fromkeys(round.cohort, 1.0)
            for plan in federation.chain.plan:
                plan(round)
            if alone := (queries.settled() if away else queries.received_model) - set(round.cohort):
                federation.count_models(queries, before, alone)
            return round
        except ClientsAway as fault:
            away |= fault.client_ids


def _leave_out(round: Round, away: Set[int]) -> None:
    """Leave out the clients whose answers do not count in this round."""
    round.available = [client_id for client_id in round.available if client_id not in away]
    if not round.available:
        _nothing_left(f"an answer that counts in round {round.number}, but {len(away)} clients are away without one")


def _checked(federation: Server, cohort: Sequence[int], context: SelectionContext) -> list[int]:
    """Hold a selector to its contract: as many distinct available clients as there are places, or all available."""
    selector, available = federation.selector, context.available
    strangers = sorted(set(cohort).difference(available))
    sizes = range(len(available) + 1) if selector.sizes_itself else (context.num_slots, len(available))
    if len(cohort) not in sizes or len(set(cohort)) != len(cohort) or strangers:
        raise SelectionError(
            f"Expected {type(selector).__name__} to select {context.num_slots} distinct available clients, or all "
            f"{len(available)}, in round {context.round}, but got {cohort}"
            f"{f', where {strangers} are away' if strangers else ''}: fix its `select`."
        )
    return [int(client_id) for client_id in cohort]


def _send(federation: Server, round: Round) -> None:
    """Make the orders of a round, and count what they are."""
    ledger = round.queries.ledger
    known = round.before if round.server is round.before.aggregator else replace(round.before, aggregator=round.server)
    for client_id, part in round.finished.items() if not isinstance(round.aggregator, Algorithm) else ():
        task = federation.order(known, client_id, part)
        ledger.floats_down += federation.num_floats_sent(task.broadcast, client_id)
        if part > 0:
            round.tasks.append(task)
    for dispatch in federation.chain.dispatch:
        dispatch(round)
    train = {task.client_id for task in round.tasks}
    ledger.query_samples += sum(samples for client_id, samples in round.queries.begun.items() if client_id not in train)


def _received(federation: Server, round: Round, tasks: Sequence[ClientTask]) -> Generator[ClientUpdate, None, None]:
    """Yield the valid updates; note what stays of each when its tensors are freed."""
    orders = enumerate(tasks, 1)
    for update in federation.apart(federation.engine.run(tasks)):
        position, task = next(orders)
        federation.progress(round.number, position, len(tasks), "train")
        for incoming in federation.chain.incoming:
            update = incoming(round, task, update)
            if update is None:
                round.num_dropped += 1
                break
        else:
            if update.memory:
                round.memory[task.client_id] = update.memory
            if update.silent is not True:
                measured, client_id = update.metrics, task.client_id
                answers = {query: of[client_id] for query, of in round.queries.answers.items() if client_id in of}
                receipt = (update.num_samples, update.num_steps, float(measured["loss_sum"]), measured["num_seen"], answers)
                round.receipts.append(ClientReceipt(client_id, *receipt))
                if round.keeps_updates:
                    round.updates.append(update)
                yield update
        del update  # or it would be held while the next is waited for
    assert next(orders, None) is None, "an engine yields an update for each order"


def _guarded(round: Round) -> Fold:
    """Return what makes the next model of a round's updates; without any, the aggregator says what becomes of it."""
    federation, aggregator = round.federation, round.aggregator
    fold = federation.fold if aggregator is federation.aggregator else aggregator.aggregate
    if isinstance(aggregator, Algorithm):
        verbs: Any = Verbs(round, partial(_received, federation, round))
        return lambda server, model, _: fold(server, model, verbs)

    def guarded(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        updates = iter(updates)
        if first := list(itertools.islice(updates, 1)):
            # Popped, so that nothing here holds the first update while the others come.
            return fold(server, model, itertools.chain((first.pop() for _ in range(1)), updates))
        if round.num_dropped > 1 or (round.num_dropped and not round.before.participation_counts.any()):
            _nothing_left(f"a valid update in round {round.number}, but all {round.num_dropped} were dropped")
        return aggregator.without_updates(round.before.aggregator, model)

    return guarded


def _nothing_left(expected: str) -> None:
    raise BadUpdateError(
        f"Expected {expected}: lower the learning rate, or see what is wrong in the log, or in your mechanism."
    )


def result_of(round: Round) -> RoundResult:
    """Return what a round leaves behind, as far as it is known; later metrics of the round show in it."""
    return RoundResult(
        round=round.number,
        cohort=tuple(round.cohort),
        receipts=tuple(round.receipts),
        metrics=round.metrics,
        ledger=round.queries.ledger,
        seconds=round.seconds,
        num_clients=round.federation.num_clients,
        disclosed=tuple(round.queries.disclosed),
        durations=round.plan.durations if round.plan is not None else {},
        answers=round.queries.answers,
    )


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
        **crossed(ledger),
    }


def crossed(ledger: Ledger) -> dict[str, float]:
    """Return what crossed, as metrics."""
    return {f"comm/{name}": value for name, value in asdict(ledger).items()}
