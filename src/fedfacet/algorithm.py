"""The contract of an algorithm that owns its round, for what selecting and then aggregating cannot say."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.errors import AggregationError, SelectionError
from fedfacet.mechanism import Round
from fedfacet.types import DEVICES, NOISE, ClientTask, ClientUpdate, Query, ServerState, State


@dataclass(frozen=True, eq=False)
class Verbs:
    """What an algorithm may do in a round; everything that crosses is checked, counted and written down as in any other round.

    Args:
        current: the round.
        received: orders -> their updates that count, one by one, in the order of the orders.
    """

    current: Round
    received: Callable[[Sequence[ClientTask]], Iterator[ClientUpdate]]

    @property
    def number(self) -> int:
        """That of the round, counted from 1."""
        return self.current.number

    @property
    def available(self) -> Sequence[int]:
        """The clients that are able to take part, in ascending order."""
        return self.current.available

    @property
    def cohort(self) -> Sequence[int]:
        """Those among them whom the selector has drawn."""
        return self.current.cohort

    def ask(self, query: Query, client_ids: Sequence[int], model: State | None = None) -> Mapping[int, Any]:
        """Put a query to available clients, and return their answers.

        Args:
            query: what is asked.
            client_ids: who is asked.
            model: on which they answer; by default the round's.

        Raises:
            BadUpdateError: if an answer does not count, and ``federation.on_bad_update`` is ``raise``.
            DisclosureError: if the query's answers may not leave a client.
            SelectionError: if a client is not available.
        """
        federation, queries = self.current.federation, self.current.queries
        fresh = replace(queries, order=lambda client_id: self._order(client_id, model), received_model=set())
        answers = fresh.ask(query, client_ids)
        for client_id in fresh.received_model:
            floats = federation.num_floats_sent(self._order(client_id, model).broadcast, client_id)
            queries.ledger.query_floats_down += floats
        return answers

    def train(self, client_ids: Iterable[int], model: State | None = None) -> Iterator[ClientUpdate]:
        """Send clients a model, and yield their updates that count, one by one; a client that drops out has none.

        A client may train several times in a round, each time with the same draws. They train as the updates are read.

        Args:
            client_ids: who trains.
            model: on which they train; by default the round's. ``delta`` is the difference from it.

        Raises:
            AggregationError: if the model has other tensors than the round's.
            SelectionError: if a client is not available.
        """
        federation, tasks, client_ids = self.current.federation, list[ClientTask](), list(client_ids)
        if strangers := sorted(set(client_ids).difference(self.available)):
            raise SelectionError(
                f"Expected {self._who} to train only clients that are available in round {self.number}, but {strangers} are "
                "not: choose among `verbs.available`."
            )
        if model is not None and (differ := sorted(model.keys() ^ self.current.before.model.keys())):
            raise AggregationError(
                f"Expected {self._who} to train clients on a model of the same tensors, but it differs in {differ[0]!r}: "
                "begin with `dict(model)`."
            )
        for client_id in client_ids:
            task = self._order(client_id, model, self.current.finished.get(client_id, 1.0))
            self.current.queries.ledger.floats_down += federation.num_floats_sent(task.broadcast, client_id)
            if task.step_fraction > 0:
                tasks.append(task)
        self.current.tasks += tasks
        yield from self.received(tasks)

    def evaluate(self, model: State) -> NDArray[np.int64]:
        """Count what a model says of the server's samples, by class, attribute value and predicted class, shape (Y, A, Y).

        Raises:
            AggregationError: if the server has no samples, or the algorithm does not say that it ``judges``.
        """
        if self.current.evaluator is None:
            raise AggregationError(
                "Expected samples of the server's to evaluate a model, but there are none: choose server_data=validation, and "
                'return "groups" or "classes" from `judges`.'
            )
        return self.current.evaluator.counts(state.subtract(model, self.current.before.model))

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator of this round's own for a purpose, the same whenever the round is run."""
        return rng.stream(self.current.seed, f"algorithm-{purpose}", self.number)

    @property
    def _who(self) -> str:
        return f"{type(self.current.aggregator).__name__}.round"

    def _order(self, client_id: int, model: State | None, part: float = 1.0) -> ClientTask:
        task: ClientTask = self.current.federation.order(self.current.before, client_id, part)
        return task if model is None else replace(task, broadcast=replace(task.broadcast, model=model))


class Algorithm(Aggregator):
    """An algorithm that owns its round: it says whom to ask and whom to train, on which models, and what becomes of it.

    Give it in an aggregator's place. The selector's cohort is a proposal, ``verbs.cohort``. It is immutable, as
    an aggregator is: ``round`` takes its state and returns the next one. ``average`` follows ``weighting`` and ``buffers``.
    """

    excludes = MappingProxyType(
        {
            DEVICES: "owns its round, which devices plan beforehand: choose devices=none",
            NOISE: "owns its round, and an epsilon counts one order of a client in a round: choose privacy=none",
        }
    )

    @abstractmethod
    def round(self, server: ServerState, model: State, verbs: Verbs) -> tuple[ServerState, State]:
        """Return the next state and the next global model, which is measured and saved.

        Args:
            server: the state; never written to.
            model: the global model; never written to.
            verbs: what may be done in the round.
        """

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return what was there; ``round`` is called in its place."""
        return server, model
