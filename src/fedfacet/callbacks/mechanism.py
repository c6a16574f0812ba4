"""Callbacks in a round: who watches the run, and what is measured of the new model."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedfacet.builtin import is_builtin
from fedfacet.callbacks.base import Callback, Measurement, measured_by, merged
from fedfacet.errors import first_line
from fedfacet.federation import Federation
from fedfacet.mechanism import Fold, Mechanism, Round
from fedfacet.mechanisms.termination import stop_if_due
from fedfacet.records import FederationState, RoundResult
from fedfacet.round import crossed
from fedfacet.types import ClientTask, ClientUpdate, ServerState, State

log = logging.getLogger(__name__)


class Callbacks(Mechanism):
    """Has callbacks see a round and measure the new model; those whose turn it is not wait until the last round is known.

    Args:
        callbacks: name -> callback, called in this order.
    """

    slot = "callbacks"
    rank = 15

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self.callbacks = dict(callbacks)

    def init(self) -> ServerState:
        """Return what each of them keeps."""
        return {name: callback.state_dict() for name, callback in self.callbacks.items()}

    def restore(self, saved: FederationState, *, failing: bool) -> None:
        """Have each of them take up what it kept."""
        for name in self.callbacks.keys() & saved.callbacks.keys():  # a logger may have come or gone since
            try:
                self.callbacks[name].load_state_dict(saved.callbacks[name])
            except Exception as error:
                if not failing:
                    raise
                log.warning("The callback %s cannot return to the state before the round: %s", name, first_line(error))

    def draws_between_clients(self) -> bool:
        """Tell whether one of the user's own hears of every client."""
        return not all(is_builtin(one) for one in self.callbacks.values() if _hears(one))

    def start(self, federation: Federation) -> None:
        """Tell them of the first round."""
        for callback in self.callbacks.values():
            callback.on_fit_start(federation)

    def plan(self, round: Round) -> None:
        """Keep the round's updates if somebody wants to see them."""
        round.keeps_updates |= any(callback.needs_updates for callback in self.callbacks.values())
        measuring = [part for part in self.callbacks.values() if isinstance(part, Measurement)]
        if measuring:
            round.is_measured = lambda: any(part.is_due(round.federation, round.number) for part in measuring)

    def progress(self, number: int, position: int, expected: int, phase: str) -> None:
        """Tell them that a client is done."""
        for callback in self.callbacks.values():
            callback.on_client_end(number, position, expected, phase)

    def merge(self, round: Round, inner: Fold) -> Fold:
        """Show the updates, before they are freed, to those who want to see them."""
        watching = [callback for callback in self.callbacks.values() if callback.needs_updates]

        def shown(server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
            merged = inner(server, model, updates)
            for callback in watching:
                callback.on_updates(round.federation, round.updates)
            return merged

        return shown if watching else inner

    def after(self, round: Round, new: FederationState) -> None:
        """Measure the new model."""
        parts, number = self.callbacks, round.number
        federation: Federation = round.federation
        due = {name for name, one in parts.items() if not (isinstance(one, Measurement) and not one.is_due(federation, number))}
        measured = {name: self._measure(part, round) for name, part in parts.items() if name in due}
        stop_if_due(round, {metric: value for part in measured.values() for metric, value in part.items()})
        measured |= {name: self._measure(part, round) for name, part in parts.items() if name not in due}
        round.metrics |= merged({name: measured[name] for name in parts}, round.metrics)
        round.metrics |= crossed(round.queries.ledger)  # with what their answers cost

    def _measure(self, part: Callback, round: Round) -> Mapping[str, float]:
        """Have a callback measure a round, and before that clients answer its question on the new model."""
        question = part.question()
        federation: Federation = round.federation

        def order(client_id: int) -> ClientTask:
            return replace(federation.order(federation.state, client_id), round=round.number)

        if question is not None and isinstance(part, Measurement) and part.is_due(federation, round.number):
            round.lap("measure")
            # With the ledger and the lines of the round's other questions, whose orders were on the model before.
            fresh: dict[str, Any] = {
                "disclosures": dict(federation.state.disclosures),
                "asked": {},
                "received_model": set(),
                "came": [],
            }
            queries = replace(round.queries, order=order, **fresh)
            part.on_answers(federation, queries.ask_available(question))
            federation.count_models(queries, federation.state, queries.received_model)
            federation.state = replace(federation.state, disclosures=queries.disclosures)
        return measured_by(part, federation, round.number)

    def complete(self, federation: Federation, result: RoundResult) -> None:
        """Tell them that the round is over, and once what they keep is in the state, that it may be saved."""
        for callback in self.callbacks.values():
            callback.on_round_end(federation, result)
        federation.state = federation.state.with_slot(self.slot, self.init())
        for callback in self.callbacks.values():
            callback.on_state_complete(federation)

    def end(self, federation: Federation, status: str) -> None:
        """Tell every one that the run is over, even if one of them fails."""
        failures = []
        for name, callback in self.callbacks.items():
            try:
                callback.on_fit_end(federation, status)
            except Exception as error:
                log.exception("The callback %s failed at the end of the run.", name)
                failures.append(error)
        if failures and status != "failed":  # a failure in flight already has the word
            raise failures[0]


def _hears(callback: Callback) -> bool:
    return type(callback).on_client_end is not Callback.on_client_end
