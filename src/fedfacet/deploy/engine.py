"""The engine of real sites: orders and questions go out as messages, and come back in cohort order or not at all."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedfacet import state
from fedfacet.arguments import Number, check_whole
from fedfacet.deploy.client_registry import ClientRegistry
from fedfacet.deploy.exchange import Exchange, Lost, Order, Outcome
from fedfacet.deploy.protocol import BUNDLES, PLAIN, Message, pack
from fedfacet.deploy.questions import to_plain
from fedfacet.deploy.transport import Transport
from fedfacet.engines.base import Engine
from fedfacet.errors import ConfigError, EngineError, FedFacetError
from fedfacet.query_session import ClientsAway
from fedfacet.types import Answer, ClientTask, ClientUpdate, Query, State

log = logging.getLogger(__name__)

KEPT = "site|round"
"""What the server has in the place of a client's memory: the round after which the client kept what now counts."""


class Shortfall(FedFacetError):
    """Too few updates came; the run is kept as it was before the round, and may go on later."""


@dataclass(slots=True)
class Record:
    """What a round over a network was, besides what follows from the state: all that the journal says more than metrics do.

    Attributes:
        round: its number.
        available: the clients that could take part.
        digests: client -> of the update that came in time.
        silent: the clients that sent nothing on purpose.
        lost: client -> why its update is left out.
        answered: query -> the clients that answered it.
        seconds: site -> until its last update came; no part of the journal.
    """

    round: int = 0
    available: tuple[int, ...] = ()
    digests: dict[int, str] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    answered: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class DeployedEngine(Engine):
    """Run the clients at their sites.

    Args:
        transport: carries messages.
        registry: says which site holds which client.
        run: the run's name, 32 hexadecimal digits.
        greeting: what a hello says besides who is meant: card, overrides, settings, num_clients, keeps_rounds.
        deadline_seconds: for training; a client that is later drops out of the round.
        query_deadline_seconds: for the answer to a question; a client that is later is away in the round.
        min_arrivals: updates without which a round is not finished, where so many were asked for.
        max_letter_mb: what a message may weigh.
    """

    trains_here = False

    def __init__(
        self,
        transport: Transport,
        registry: ClientRegistry,
        *,
        run: str,
        greeting: Mapping[str, Any],
        deadline_seconds: float = 600.0,
        query_deadline_seconds: float = 300.0,
        min_arrivals: int = 1,
        max_letter_mb: float = 4096,
    ) -> None:
        super().__init__(device="cpu")
        for name, value in (("deadline_seconds", deadline_seconds), ("query_deadline_seconds", query_deadline_seconds)):
            Number("larger than 0").check(f"sites.{name}", value)
        check_whole("sites.min_arrivals", min_arrivals, 0)
        self.exchange = Exchange(transport, registry, run, greeting, int(max_letter_mb * 2**20))
        self.registry = registry
        self.deadline_seconds, self.query_deadline_seconds = deadline_seconds, query_deadline_seconds
        self.min_arrivals = min_arrivals
        self.record = Record()
        self.away: frozenset[int] = frozenset()
        self.late: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self._answers: dict[tuple[Any, ...], Answer] = {}
        self._digests: dict[int, tuple[State, str]] = {}  # by identity, of models that are held here as long

    def check_query(self, query: Query, asked_by: str) -> None:
        """Refuse a question that some site does not answer.

        Raises:
            ConfigError: naming both.
        """
        name = to_plain(query)["name"]
        for site, reported in self.exchange.present.items():
            if name not in reported["queries"]:
                raise ConfigError(
                    f"Expected sites that answer `{name}`, which {asked_by} asks, but {site} does not: have its operator "
                    "list it in `policy.queries`, or choose another method."
                )

    # Rounds

    def run(self, tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield each task's update; one without tensors, as of a silent client, where none came that counts.

        Raises:
            Shortfall: if fewer came than ``min_arrivals``.
        """
        tasks = list(tasks)
        self._enter(tasks)
        record = self.record
        record.digests, record.silent, record.lost, record.seconds = {}, [], {}, {}
        orders = [self._order("train", task, True, {}) for task in tasks]
        # A map holds no update while the next is waited for.
        yield from map(self._noted, orders, self.exchange.answers(orders, self._models, self.deadline_seconds))
        arrived = len(record.digests)
        if arrived < min(self.min_arrivals, len(tasks)):
            raise Shortfall(
                f"Expected updates of {min(self.min_arrivals, len(tasks))} clients at least in round {tasks[0].round}, but "
                f"{arrived} came: go on by resume when the sites are back, or lower sites.min_arrivals"
            )

    def _noted(self, order: Order, outcome: Outcome) -> ClientUpdate:
        """Write down how an order ended, and return its update, or what stands for none."""
        record, client = self.record, order.client
        if isinstance(outcome, Lost):
            record.lost[client] = str(outcome)
            log.warning("Round %d goes on without %s: %s.", record.round, self._missed(order, outcome), outcome)
            return nothing_of(client)
        record.seconds[order.site] = max(order.seconds, record.seconds.get(order.site, 0.0))
        message, record.digests[client] = outcome
        update = _update_of(message)
        if update.silent is True:
            record.silent.append(client)
        return update

    def ask(self, query: Query, tasks: Iterable[ClientTask]) -> Iterator[Answer]:
        """Yield each client's answer, in the order of the tasks.

        Raises:
            ClientsAway: if some did not answer in time, or a site refuses the question.
            EngineError: if a site's policy refuses it in the first round.
        """
        tasks = list(tasks)
        self._enter(tasks)
        plain = to_plain(query)
        orders = [self._order("query", task, query.needs_model, {"query": plain}) for task in tasks]
        keys = [(repr(plain), order.client, order.digest) for order in orders]
        new = [number for number, key in enumerate(keys) if key not in self._answers]
        found = self.exchange.answers([orders[n] for n in new], self._models, self.query_deadline_seconds)
        away = []
        for number, outcome in zip(new, found, strict=True):
            if not isinstance(outcome, Lost):  # what the answer is like is the federation's to check, as for any engine
                self._answers[keys[number]] = Answer(*map(outcome[0].body.get, Answer._fields))  # type: ignore[arg-type]
                continue
            who = self._missed(orders[number], outcome)
            if outcome.code == "policy" and self.record.round == 1:
                raise EngineError(f"Expected {who} to answer, but {outcome}: choose another method.")
            log.warning("Round %d: %s is away, asked for %s: %s.", self.record.round, who, query.name, outcome)
            away.append(orders[number].client)
        if away:
            kept = {task.client_id: self._answers[key] for task, key in zip(tasks, keys, strict=True) if key in self._answers}
            raise ClientsAway(away, kept)
        self.record.answered.setdefault(plain["name"], []).extend(order.client for order in orders)
        return (self._answers[key] for key in keys)

    def _missed(self, order: Order, why: Lost) -> str:
        """Count a message without an answer that counts, and return whose it was."""
        if why.code == "late":
            self.late[order.site] += 1
        else:
            self.refused[order.site, why.code] += 1
        return f"client {order.client} ({self.registry.clients[order.client].name})"

    def refuse(self, query: Query, client_id: int, fault: str) -> None:
        """Count an answer that came and does not count."""
        order = Order(client_id, self.registry.clients[client_id].site, b"", None)
        who = self._missed(order, Lost(fault))
        log.warning("Round %d: %s is away: %s.", self.record.round, who, fault)
        self.record.answered.pop(to_plain(query)["name"], None)

    def most_samples(self, client_id: int) -> int:
        """Return how many samples a client has, with those that it holds out, by what its site has said of itself."""
        number, _, share = self.exchange.reported(client_id)
        return int(number / (1 - share)) + 1

    def close(self) -> None:
        """Let go of the sites."""
        self.exchange.transport.close()

    # Messages

    def _enter(self, tasks: Sequence[ClientTask]) -> None:
        """Begin a round, unless it has begun."""
        if tasks and tasks[0].round != self.record.round:
            self.begin(tasks[0].round)

    def begin(self, round: int) -> None:
        """Forget the round before."""
        if round != self.record.round:
            self.record, self.away = Record(round), frozenset()
            self._answers, self._digests = {}, {}
            self.exchange.begin(round)

    def _order(self, kind: str, task: ClientTask, needs_model: bool, more: Mapping[str, Any]) -> Order:
        model = self._digest_of(task.broadcast.model) if needs_model else None
        kept = task.memory.get(KEPT)
        body = {
            **more,
            "client": task.client_id,
            "round": task.round,
            "seed": task.seed,
            "model": model,
            "memory_round": None if kept is None else int(kept),
            "step_fraction": task.step_fraction,
            "lr_factor": task.lr_factor,
        }
        content = pack(Message(kind, self.exchange.run, body, {"extras": task.broadcast.extras}))
        return Order(task.client_id, self.registry.clients[task.client_id].site, content, model)

    def _digest_of(self, model: State) -> str:
        """Return a model's digest, which clients of one shape share."""
        if id(model) not in self._digests:
            self._digests[id(model)] = model, state.digest(model)
        return self._digests[id(model)][1]

    @property
    def _models(self) -> dict[str, State]:
        return {digest: model for model, digest in self._digests.values()}


def _update_of(message: Message) -> ClientUpdate:
    """Return the update of a message; whether it fits is the federation's to check, as for any update."""
    body = message.body
    plain_values: dict[str, Any] = {name: body.get(name) for name in PLAIN}
    return ClientUpdate(
        client_id=body["client"],
        **plain_values | {bundle: message.bundles.get(bundle, {}) for bundle in BUNDLES},
        memory={KEPT: torch.tensor(int(body["round"]))} if body.get("keeps") is True else {},
        silent=body.get("silent") is True,
        num_lost=body.get("num_lost", 0),
    )


def nothing_of(client_id: int) -> ClientUpdate:
    """Return what stands for an update that did not come: it is that of a client that sends nothing."""
    return ClientUpdate(client_id, {}, {}, 1, 1, 1.0, {"loss_sum": 0.0, "num_seen": 0}, silent=True)
