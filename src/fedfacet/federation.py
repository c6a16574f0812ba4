"""The round loop and the saved state: the file to read first.

A round is a pure function of the saved state and the round number (law 1). It runs in ten steps, numbered below; every draw in
it comes from ``rng.stream(seed, purpose, round, ...)``, and everything that crosses between server and clients is counted.
Rounds are counted from 1.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import check_choice, check_whole
from fedfacet.bookkeeping import Clock, Receipt, fault_of, training_metrics
from fedfacet.callbacks.base import Callback
from fedfacet.engines.base import Engine
from fedfacet.errors import BadUpdateError, CheckpointError, Interrupted, SelectionError
from fedfacet.participation.base import Participation
from fedfacet.schedulers.base import Scheduler
from fedfacet.selectors.base import ClientSelector
from fedfacet.types import (
    Broadcast,
    ClientTask,
    ClientUpdate,
    FederationState,
    Ledger,
    Query,
    RoundResult,
    SelectionContext,
    State,
)

log = logging.getLogger(__name__)


class Federation:
    """A server, its clients behind an engine, and the rounds between them.

    Args:
        model: the initial global model.
        num_clients: the size of the population, 1 or larger.
        partition_digest: of the partition, saved so that a checkpoint knows what it belongs to.
        engine: runs the clients; already set up.
        selector: says who takes part.
        aggregator: makes the next model.
        participation: says who is able to take part and how a client's round may end.
        rounds: how many rounds to run, 1 or larger.
        cohort_size: how many clients a round asks for by default, between 1 and ``num_clients``.
        seed: of initial weights, selection and local training; 0 or larger.
        on_bad_update: ``"raise"`` or ``"drop"`` an update with NaN, infinity or the wrong shapes.
        callbacks: name -> callback, called in this order.
        scheduler: of the clients' learning rate; ``None`` for a constant one.
        personal: names of the model's tensors that stay with clients, which each needs to be sent only once.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        *,
        model: State,
        num_clients: int,
        partition_digest: str,
        engine: Engine,
        selector: ClientSelector,
        aggregator: Aggregator,
        participation: Participation,
        rounds: int,
        cohort_size: int,
        seed: int,
        on_bad_update: str = "raise",
        callbacks: Mapping[str, Callback] | None = None,
        scheduler: Scheduler | None = None,
        personal: Set[str] = frozenset(),
    ) -> None:
        check_whole("federation.rounds", rounds)
        if not isinstance(cohort_size, int) or not 1 <= cohort_size <= num_clients:
            raise ValueError(
                f"Expected `federation.cohort_size` between 1 and the federation's {num_clients} clients, but got "
                f"{cohort_size!r}: lower it or choose a partition with more clients."
            )
        check_whole("seed", seed, 0)
        check_choice("federation.on_bad_update", on_bad_update, ("raise", "drop"))
        if participation.gives_weights and not selector.draws_by_weights:
            raise ValueError(
                f"Expected a selector that draws clients by the weights of `participation`, but {type(selector).__name__} does "
                "not: choose `selector=uniform`, or a participation without weights such as `participation.mode=available`."
            )
        self.num_clients = num_clients
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
        self.personal = personal
        self._poll: Callable[[], None] = lambda: None
        self.state = FederationState(
            round=0,
            model=state.clone(model),
            memory={},
            disclosures={},
            participation_counts=torch.zeros(num_clients, dtype=torch.int64),
            selector=selector.state_dict(),
            aggregator=aggregator.state_dict(),
            callbacks={name: callback.state_dict() for name, callback in self.callbacks.items()},
            partition_digest=partition_digest,
            scheduler=scheduler.state_dict() if scheduler is not None else {},
        )

    def restore(self, saved: FederationState) -> None:
        """Go back to a saved state; the next round is ``saved.round + 1``.

        Raises:
            CheckpointError: if the state belongs to another partition.
        """
        if saved.partition_digest != self.state.partition_digest:
            raise CheckpointError(
                f"Expected a checkpoint of the partition with digest {self.state.partition_digest[:12]}, but got one of "
                f"{saved.partition_digest[:12]}: bring back the data set that the run was started on, or start a new run."
            )
        self.state = saved
        self.selector.load_state_dict(saved.selector)
        self.aggregator.load_state_dict(saved.aggregator)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved.scheduler)
        for name in self.callbacks.keys() & saved.callbacks.keys():  # a logger may have come or gone since
            self.callbacks[name].load_state_dict(saved.callbacks[name])

    def fit(self, poll: Callable[[], None] = lambda: None) -> FederationState:
        """Run the rounds that are left.

        Args:
            poll: called between clients; it may raise ``Interrupted``, upon which the round in progress is given up and the
                state stays that of the last whole round.

        Returns:
            The final state.
        """
        self._poll = poll
        status = "failed"
        try:
            for callback in self.callbacks.values():
                callback.on_fit_start(self)
            while self.state.round < self.rounds:
                poll()
                self.run_round()
            status = "finished"
        except Interrupted:
            status = "interrupted"
            raise
        finally:
            self._finish(status)
        return self.state

    def run_round(self) -> RoundResult:
        """Run one round, and make it part of the state."""
        round, before = self.state.round + 1, self.state.model
        ledger = Ledger()
        clock = Clock()

        # 1. Who is able to take part?
        available = self.participation.available(self.num_clients, rng.stream(self.seed, "available", round))

        # 2. Who does? What the selector asks of clients on its way is counted and remembered.
        disclosures = {name: dict(answers) for name, answers in self.state.disclosures.items()}
        received_model: set[int] = set()
        begun: dict[int, int] = {}
        cohort = self._select(
            SelectionContext(
                round=round,
                num_clients=self.num_clients,
                cohort_size=self.cohort_size,
                available=available,
                disclosed=disclosures,
                rng=rng.stream(self.seed, "selection", round),
                ask=clock.apart("ask", self._asker(round, available, disclosures, received_model, begun, ledger)),
                log_weights=self._log_weights(round),
            )
        )
        whole, own = (state.num_floats(part) for part in (before, {name: before[name] for name in self.personal}))
        knows_own = self.state.participation_counts > 0

        def floats_of(broadcast: Broadcast, client_id: int) -> int:
            sent = whole if broadcast.model is before else state.num_floats(broadcast.model)
            return sent + state.num_floats(broadcast.extras) - own * int(knows_own[client_id])

        strangers = received_model - set(cohort)
        ledger.query_floats_down = sum(floats_of(self.aggregator.broadcast(before, k), k) for k in strangers)
        clock.lap("select")

        # 3.-4. Each is sent the model with an order of its own; those who will not answer get no order.
        tasks = []
        for client_id in cohort:
            broadcast = self.aggregator.broadcast(before, client_id)
            ledger.floats_down += floats_of(broadcast, client_id)
            fraction = self.participation.outcome(client_id, partial(rng.stream, self.seed, "outcome", round, client_id))
            if fraction > 0:
                memory = self.state.memory.get(client_id, {})
                tasks.append(ClientTask(client_id, round, self.seed, broadcast, memory, fraction, self.lr_factor(round)))
        ledger.query_samples += sum(begun[client_id] for client_id in begun.keys() - {task.client_id for task in tasks})

        # 5.-7. They train; their updates cross back one by one, in cohort order, and are folded into the next model.
        watching = [callback for callback in self.callbacks.values() if callback.needs_updates]
        kept: list[ClientUpdate] | None = [] if watching or self.selector.needs_updates else None
        receipts: list[Receipt] = []
        updates = self._receive(self.engine.run(tasks), round, len(tasks), ledger, receipts, kept)
        first = next(updates, None)
        after = before if first is None else self.aggregator.aggregate(before, itertools.chain([first], updates))
        clock.lap("train")

        # 8. Those who asked for the updates see them, before they are freed.
        for callback in watching:
            callback.on_updates(round, before, kept or [], after)

        # 9. The round becomes part of the state.
        self.state.round = round
        self.state.model = after
        self.state.memory = self.state.memory | {receipt.client_id: receipt.memory for receipt in receipts if receipt.memory}
        self.state.disclosures = disclosures
        arrived = torch.tensor([receipt.client_id for receipt in receipts], dtype=torch.int64)
        self.state.participation_counts = self.state.participation_counts.index_add(0, arrived, torch.ones_like(arrived))

        # 10. Measure the new model, tell everybody, and let it be saved.
        metrics = training_metrics(receipts, ledger)
        for callback in self.callbacks.values():
            metrics |= callback.measure(self, round)
        if self.scheduler is not None and not self.scheduler.is_constant:
            metrics["train/lr_factor"] = self.lr_factor(round)
            self.scheduler.observe(metrics)
        clock.lap("measure")
        result = RoundResult(
            round=round,
            cohort=tuple(cohort),
            arrived=tuple(receipt.client_id for receipt in receipts),
            metrics=metrics,
            ledger=ledger,
            seconds=clock.seconds,
            num_clients=self.num_clients,
        )
        clock.apart("select", self.selector.observe)(result, kept or [] if self.selector.needs_updates else [])
        for callback in self.callbacks.values():
            callback.on_round_end(self, result)
        self._collect_states()
        for callback in self.callbacks.values():
            callback.on_state_complete(self)
        return result

    def _log_weights(self, round: int) -> NDArray[np.float64] | None:
        if not self.participation.gives_weights:
            return None
        return self.participation.log_weights(self.num_clients, rng.stream(self.seed, "participation-weights", round))

    def lr_factor(self, round: int) -> float:
        """Return by what the clients' learning rate is multiplied in the round to come."""
        return self.scheduler.factor(round) if self.scheduler is not None else 1.0

    def _select(self, context: SelectionContext) -> list[int]:
        """Have the selector choose, and hold it to its contract."""
        if not context.available:
            return []
        size = self.selector.cohort_size(context)
        cohort = self.selector.select(context)
        strangers = sorted(set(cohort) - set(context.available))
        if len(cohort) != size or len(set(cohort)) != len(cohort) or strangers:
            raise SelectionError(
                f"Expected {type(self.selector).__name__} to select {size} distinct available clients in round "
                f"{context.round}, but got {cohort}{f', where {strangers} are away' if strangers else ''}: mend its `select`."
            )
        return [int(client_id) for client_id in cohort]

    def _asker(
        self,
        round: int,
        available: tuple[int, ...],
        disclosures: dict[str, dict[int, Any]],
        received_model: set[int],
        begun: dict[int, int],
        ledger: Ledger,
    ) -> Callable[[Query, Sequence[int]], Mapping[int, Any]]:
        """Return the ``ask`` of this round's context; ``begun`` gets the samples of clients that began with their training."""

        def ask(query: Query, client_ids: Sequence[int]) -> Mapping[int, Any]:
            if strangers := sorted(set(client_ids) - set(available)):
                raise SelectionError(
                    f"Expected {type(self.selector).__name__} to ask only clients that are available in round {round}, but "
                    f"{strangers} are not: mend its `select`."
                )
            tasks = [
                ClientTask(
                    client_id,
                    round,
                    self.seed,
                    self.aggregator.broadcast(self.state.model, client_id),
                    self.state.memory.get(client_id, {}),
                    lr_factor=self.lr_factor(round),
                )
                for client_id in client_ids
            ]
            answers = {}
            for position, (client_id, answer) in enumerate(zip(client_ids, self.engine.ask(query, tasks), strict=True), 1):
                self._poll()
                answers[client_id] = answer.value
                ledger.query_floats_up += answer.floats_up
                if getattr(query, "starts_training", False):
                    begun[client_id] = max(begun.get(client_id, 0), answer.samples)
                else:
                    ledger.query_samples += answer.samples
                for callback in self.callbacks.values():
                    callback.on_client_end(round, position, len(client_ids), f"query {query.name}")
            if query.needs_model:
                received_model.update(client_ids)
            disclosures.setdefault(query.name, {}).update(answers)
            return answers

        return ask

    def _receive(
        self,
        updates: Iterator[ClientUpdate],
        round: int,
        expected: int,
        ledger: Ledger,
        receipts: list[Receipt],
        kept: list[ClientUpdate] | None,
    ) -> Iterator[ClientUpdate]:
        """Yield the valid updates; note a receipt of each, without its tensors, and keep all of it where ``kept`` is a list."""
        names: Set[str] = frozenset()
        is_finite = state.FiniteCheck()
        for position, update in enumerate(updates, 1):
            self._poll()
            ledger.floats_up += (
                state.num_floats(update.delta) + state.num_floats(update.buffers) + state.num_floats(update.extras)
            )
            for callback in self.callbacks.values():
                callback.on_client_end(round, position, expected, "train")
            own = update.delta.keys() | update.buffers.keys() if update.buffers else update.delta.keys()
            if fault := fault_of(update, self.state.model, names or own, is_finite):
                message = (
                    f"Expected a finite update of the model's shapes from client {update.client_id} in round {round}, "
                    f"but {fault}"
                )
                if self.on_bad_update == "raise":
                    raise BadUpdateError(
                        f"{message}: lower the learning rate, or leave such updates out by federation.on_bad_update=drop, "
                        "which a resume takes too."
                    )
                log.warning("%s; the update is dropped.", message)
                continue
            names = names or own
            receipts.append(Receipt(update.client_id, update.num_steps, update.metrics, update.memory))
            if kept is not None:
                kept.append(update)
            yield update

    def _collect_states(self) -> None:
        self.state.selector = self.selector.state_dict()
        self.state.aggregator = self.aggregator.state_dict()
        if self.scheduler is not None:
            self.state.scheduler = self.scheduler.state_dict()
        self.state.callbacks = {name: callback.state_dict() for name, callback in self.callbacks.items()}

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
