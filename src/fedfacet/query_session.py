"""Questions to clients in a round: checked, put, counted and remembered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fedfacet.answer_form import ANYTHING, is_count, is_finite, plain, shown
from fedfacet.clock import Asked
from fedfacet.engines.base import Engine
from fedfacet.errors import FedFacetError, SelectionError
from fedfacet.records import Disclosed, Ledger
from fedfacet.types import Answer, ClientTask, Query


class ClientsAway(FedFacetError):
    """Some clients have not answered a question, or not as they must; the round begins anew without them.

    Args:
        client_ids: they.
        answers: client -> answer to the same question that has come from another and was not handed over before.
    """

    def __init__(self, client_ids: Iterable[int], answers: Mapping[int, Answer] = MappingProxyType({})) -> None:
        self.client_ids, self.answers = frozenset(client_ids), answers
        super().__init__(f"clients {sorted(self.client_ids)} gave no answer that counts")


@dataclass(slots=True, kw_only=True)
class QuerySession:
    """How the selector and the aggregator put questions in one round, and what came of it.

    Attributes:
        round: its number.
        available: the clients that may be asked.
        engine: has the clients answer.
        sizes: of the data set, by the letters that forms of answers have.
        refuse: called with a query and what is wrong with clients' answers to it; raises ``ClientsAway``, or another error.
        order: client -> its order to train in this round, which it answers on.
        progress: called after each answer with its position, of how many, and to what.
        lap: books the time since it was called last, to a phase.
        disclosures: query name -> client -> what the client has answered so far in the run; answers are added.
        came: every answer of the round with its question and client, also from before it began anew; answers are added.
        checks: each raises if a question may not be put, or returns by which noise multiplier its answers are counted.
        ledger: of the round; what questions cost is added to it, as the rest of the round is.
        answers: of this round, query name -> client -> answer.
        asked: client -> what its answers came to.
        received_model: the clients that got the model to answer on.
        begun: client -> samples of the first steps of its training that it took to answer.
        disclosed: a line for each answer.
    """

    round: int
    available: Sequence[int]
    engine: Engine
    sizes: Mapping[str, int]
    refuse: Callable[[int, Query, Mapping[int, str]], None]
    order: Callable[[int], ClientTask]
    progress: Callable[[int, int, str], None]
    lap: Callable[[str], None]
    disclosures: dict[str, Mapping[int, Any]]
    came: list[tuple[Query, int, Answer]]
    checks: Sequence[Callable[[Query], float | None]]
    ledger: Ledger = field(default_factory=Ledger)
    answers: dict[str, dict[int, Any]] = field(default_factory=dict)
    asked: dict[int, Asked] = field(default_factory=dict)
    received_model: set[int] = field(default_factory=set)
    begun: dict[int, int] = field(default_factory=dict)
    disclosed: list[Disclosed] = field(default_factory=list)

    def ask(self, query: Query, client_ids: Sequence[int]) -> Mapping[int, Any]:
        """Put a query to clients, and return their answers; this is ``SelectionContext.ask``.

        Raises:
            BadUpdateError: if an answer does not count, and ``federation.on_bad_update`` is ``raise``.
            ClientsAway: if an answer does not count, or did not come.
            DisclosureError: if the query's answers may not leave a client.
            SelectionError: if a client is not available.
        """
        self.lap("select")
        noise = [check(query) for check in self.checks]
        if strangers := sorted(set(client_ids).difference(self.available)):
            raise SelectionError(
                f"Expected the selector to ask only clients that are available in round {self.round}, but {strangers} are not: "
                "fix its `select`."
            )
        tasks = (self.order(client_id) for client_id in client_ids)  # of a million clients none is kept
        came, faults = {}, {}
        try:
            for position, (client_id, answer) in enumerate(zip(client_ids, self.engine.ask(query, tasks), strict=True), 1):
                self.progress(position, len(client_ids), f"query {query.name}")
                came[client_id] = answer = answer._replace(value=plain(answer.value))
                if (fault := self._misfit(query, client_id, answer)) is not None:
                    faults[client_id] = fault
        except ClientsAway as away:
            came |= {client_id: answer._replace(value=plain(answer.value)) for client_id, answer in away.answers.items()}
            raise
        finally:
            self.came += [(query, client_id, answer) for client_id, answer in came.items()]
        if faults:
            self.refuse(self.round, query, faults)
        answers = {client_id: answer.value for client_id, answer in came.items()}
        for client_id, answer in came.items():
            self._book(query, client_id, answer, noise)
        if query.needs_model:
            self.received_model.update(client_ids)
        self.answers[query.name] = self.answers.get(query.name, {}) | answers
        self.disclosures[query.name] = {**self.disclosures.get(query.name, {}), **answers}
        self.lap("ask")
        return answers

    def ask_available(self, query: Query) -> Mapping[int, Any]:
        """Put a query to all available clients, and return the answers that count; it leaves the others out."""
        clients = self.available
        while True:
            try:
                answers = self.ask(query, clients)
            except ClientsAway as fault:
                clients = [client for client in clients if client not in fault.client_ids]
            else:
                if len(clients) < len(self.available):
                    self.settled()
                return answers

    def _book(self, query: Query, client_id: int, answer: Answer, noise: Iterable[float | None]) -> None:
        """Count what an answer cost, and write it down."""
        begins = getattr(query, "starts_training", False)
        known = self.asked.get(client_id, Asked())
        samples = known.samples + (0 if begins else answer.samples)
        down, up = known.floats_down + query.floats_down, known.floats_up + answer.floats_up
        self.asked[client_id] = Asked(down, up, samples)
        self.ledger.query_floats_down += query.floats_down
        self.ledger.query_floats_up += answer.floats_up
        counted = next((multiplier for multiplier in noise if multiplier is not None), None)
        answered = (client_id, query.name, query.kind, answer.floats_up, query.epsilon, counted)
        self.disclosed.append(Disclosed(*answered))
        if begins:
            self.begun[client_id] = max(self.begun.get(client_id, 0), answer.samples)
        else:
            self.ledger.query_samples += answer.samples

    def settled(self) -> set[int]:
        """Book what came before the round began anew and did not come again, and return the clients that got the model.

        An answer that counts is remembered for the rounds to come; of one that does not, only its line is written.
        """
        booked = {(line.query, line.client_id) for line in self.disclosed}
        for query, client_id, answer in self.came:
            if (query.name, client_id) in booked:
                continue
            booked.add((query.name, client_id))
            if query.needs_model:
                self.received_model.add(client_id)
            if self._misfit(query, client_id, answer) is None:
                self.disclosures[query.name] = {client_id: answer.value, **self.disclosures.get(query.name, {})}
            else:
                answer = Answer(None, *(number if is_count(number) else 0 for number in answer[1:]))
            self._book(query, client_id, answer, [check(query) for check in self.checks])
        return self.received_model

    def _misfit(self, query: Query, client_id: int, answer: Answer) -> str | None:
        """Say what of an answer is not as the query declares it; ``None`` for nothing."""
        fault = getattr(query, "form", ANYTHING).misfit(answer.value, self.sizes, self.engine.most_samples(client_id))
        if fault is not None:
            return f"its {query.name} is {fault}"
        if not (is_count(answer.floats_up) and is_count(answer.samples)):
            return f"its {query.name} cost {shown(answer[1:])}, which are no whole numbers, 0 or larger"
        return None

    def report(self, query: Query, client_ids: Sequence[int]) -> Mapping[int, Any]:
        """Put the aggregator's question to those clients who have not answered it yet, and return the answers that hold.

        An answer that needed a model holds for its round; any other for the run, also those of clients not named here. One that
        is not finite does not count, whatever the query allows; ``ask`` tells what follows.
        """
        ever = self.disclosures.get(query.name, {}) if not query.needs_model else {}
        answered = self.answers.get(query.name, {})
        unasked = [k for k in client_ids if k not in ever and k not in answered]
        if unasked:
            self.ask(query, unasked)
        answers = self.disclosures.get(query.name, {})
        if faults := {k: f"its {query.name} is {shown(answers[k])}" for k in client_ids if not is_finite(answers[k])}:
            self.refuse(self.round, query, faults)
        return {k: answer for k, answer in answers.items() if k in client_ids or (not query.needs_model and is_finite(answer))}
