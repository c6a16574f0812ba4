"""Messages out and answers in: what is sent again, what is late, and what is no answer at all."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedfacet.deploy.agreement import differences, versions
from fedfacet.deploy.client_registry import ClientRegistry
from fedfacet.deploy.protocol import PROTOCOL, Message, MessageError, digest_of, pack, unpack
from fedfacet.deploy.transport import Fault, Ticket, Transport
from fedfacet.errors import ConfigError, EngineError, FedFacetError
from fedfacet.types import State

log = logging.getLogger(__name__)

_TRIES = 3  # a message that has cost a site its life so often, or its memory, is given up
_SLICE = 0.2  # seconds between looks at whether the user has stopped the run
_GREETING_SECONDS = 300.0
_MOST_WORDS = 500  # characters of a site's that are shown


@dataclass(slots=True, eq=False)
class Order:
    """A message that a client's site must answer.

    Attributes:
        client: the client's number.
        site: that holds its data.
        content: the message.
        model: the digest of the model that the site must have to answer it; ``None`` for none.
        tries: how often it was sent.
        seconds: until its answer came, or the last of its faults.
    """

    client: int
    site: str
    content: bytes
    model: str | None
    tries: int = 0
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """By what the message is known."""
        return digest_of(self.content)


class Lost(FedFacetError):
    """Why an order has no answer that counts.

    Attributes:
        code: that of the site's refusal where it refused; ``late`` where nothing came, and ``answer`` where that is at fault.
    """

    def __init__(self, sentence: str, code: str = "answer") -> None:
        super().__init__(sentence)
        self.code = code


Outcome = tuple[Message, str] | Lost
"""An answer with the digest of it, or why there is none that counts."""


def _words(refusal: Message) -> tuple[str, str]:
    """Return a refusal's code and sentence, which a site may have made of anything, as a log and a terminal take them."""
    code, sentence = (str(refusal.body.get(part))[:_MOST_WORDS] for part in ("code", "sentence"))
    return code if code.isprintable() else repr(code), sentence if sentence.isprintable() else repr(sentence)


def _is_hello(body: Mapping[str, Any], clients: Mapping[str, int]) -> bool:
    """Tell whether a site's hello says what it must."""
    reported, versions, queries = (body.get(name) for name in ("clients", "versions", "queries"))
    if not (isinstance(reported, dict) and reported.keys() == clients.keys() and isinstance(queries, list)):
        return False
    known = [one for one in reported.values() if isinstance(one, list) and list(map(type, one)) == [int, str, float]]
    whole = [number for number, _, share in known if 0 < number < 2**31 and 0 <= share < 1]
    if len(whole) != len(reported) or not (
        isinstance(versions, dict) and "torch" in versions and {"threads", "device"} <= body.keys()
    ):
        return False
    shown = (str(word) for word in (*versions, *versions.values(), body["device"], body["threads"]))
    return all(word.isprintable() and len(word) <= _MOST_WORDS for word in shown)


@dataclass(eq=False, repr=False)
class Exchange:
    """Has messages answered.

    Attributes:
        transport: carries messages.
        registry: says which site holds which client.
        run: the run's name, 32 hexadecimal digits.
        greeting: what a hello says besides who is meant: card, overrides, settings, keeps_rounds.
        most_bytes: what a message may weigh.
        on_wait: is called whenever answers are waited for.
    """

    transport: Transport
    registry: ClientRegistry
    run: str
    greeting: Mapping[str, Any]
    most_bytes: int
    on_wait: Callable[[], None] = lambda: None
    present: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # site -> what its hello has said
    round: int = 0
    traffic: Counter[tuple[str, str]] = field(default_factory=Counter)  # (site, up or down) -> bytes
    _open: dict[Ticket, Order | str] = field(default_factory=dict)
    _greeted: set[str] = field(default_factory=set)
    _sent_models: set[tuple[str, str]] = field(default_factory=set)
    _began: float = 0.0  # when the last answers were asked for

    def begin(self, round: int) -> None:
        """Begin a round, whose models the sites do not have yet."""
        self.round, self._sent_models = round, set()

    def greet(self) -> dict[str, Mapping[str, Any]]:
        """Say hello to all sites, and return what each says of itself.

        Raises:
            ConfigError: in one sentence, what of a site does not fit.
        """
        sites = self.registry.sites
        if absent := [site for site in sites if not self.transport.sites().get(site)]:
            raise ConfigError(
                f"Expected every site of the roster to be connected, but {absent[0]} is not: have it join, or "
                "name its client.yaml in `deploy.clients`."
            )
        for site in sites:
            self._greet(site)
        until = time.monotonic() + _GREETING_SECONDS
        while len(self.present) < len(sites) and time.monotonic() < until:
            for ticket, content in self._poll(until):
                self._hear_hello(ticket, content)
        if missing := [site for site in sites if site not in self.present]:
            raise ConfigError(f"Expected {missing[0]} to say hello within {_GREETING_SECONDS:g} seconds, but it did not.")
        return self.present

    def reported(self, client: int) -> list[Any]:
        """Return what its site has said of a client: how many samples it trains on, their digest, the part held out."""
        member = self.registry.clients[client]
        found: list[Any] = self.present[member.site]["clients"][member.name]
        return found

    def _hear_hello(self, ticket: Ticket, content: bytes | Fault) -> None:
        self._open.pop(ticket, None)
        if isinstance(content, Fault):
            raise ConfigError(f"Expected {ticket.site} to say hello, but {content.sentence}.")
        message = self._read(ticket.site, content)
        if message.kind == "refusal":
            code, sentence = _words(message)
            raise ConfigError(f"{ticket.site} refuses the run ({code}): {sentence}.")
        if message.kind == "hello":
            if not _is_hello(message.body, self.registry.at(ticket.site)):
                raise ConfigError(
                    f"Expected {ticket.site} to say of its clients what it has, but its hello says something else."
                )
            if other := differences(message.body["versions"]):
                log.warning("%s has %s: its numbers may differ.", ticket.site, other)
            self.present[ticket.site] = message.body

    def answers(self, orders: Sequence[Order], models: Mapping[str, State], seconds: float) -> Iterator[Outcome]:
        """Send messages, and yield per message its answer with the digest of that, or why there is none, in the order given.

        Args:
            orders: the messages.
            models: those that the messages name, by digest.
            seconds: how long answers are waited for.
        """
        self._began = time.monotonic()
        until = self._began + seconds
        done: dict[Order, Outcome] = {}
        try:
            packed: dict[str, bytes] = {}
            for order in orders:
                self._send(order, models, packed)
            packed.clear()
            for order in orders:
                while order not in done:
                    came = self._take_all(until, models, done)  # also after the deadline: what is there was in time
                    late = time.monotonic() - until
                    if late >= 0 and (not came or late > seconds):
                        break
                yield done.pop(order, Lost(f"no answer has come within {seconds:g} seconds", "late"))
        finally:
            ours = set(orders)
            tickets = [ticket for ticket, waiting in self._open.items() if waiting in ours]
            self.transport.cancel(tickets)
            for ticket in tickets:
                del self._open[ticket]

    def _take_all(self, until: float, models: Mapping[str, State], done: dict[Order, Outcome]) -> bool:
        """Take what has come, and tell whether anything has; no message outlives the call."""
        came = self._poll(until)
        for ticket, content in came:
            self._take(ticket, content, models, done)
        return bool(came)

    def _poll(self, until: float) -> list[tuple[Ticket, bytes | Fault]]:
        self.on_wait()
        came = self.transport.poll(max(0.0, min(_SLICE, until - time.monotonic())))
        for ticket, content in came:
            self.traffic[ticket.site, "up"] += len(content) if isinstance(content, bytes) else 0
        return came

    def _post(self, site: str, content: bytes, what: Order | str) -> None:
        self.traffic[site, "down"] += len(content)
        self._open[self.transport.send(site, content)] = what

    def _greet(self, site: str) -> None:
        body = {
            **self.greeting,
            "clients": self.registry.at(site),
            "num_clients": len(self.registry.clients),
            "versions": {**versions(), "protocol": PROTOCOL},
        }
        self._post(site, pack(Message("hello", self.run, body)), "hello")
        self._greeted.add(site)

    def _send(self, order: Order, models: Mapping[str, State], packed: dict[str, bytes]) -> None:
        """Send a message, and before it what its site must have to answer it; ``packed`` has the last model as a message."""
        order.tries += 1
        if order.site not in self._greeted:
            self._greet(order.site)
        if order.model is not None and (order.site, order.model) not in self._sent_models:
            if order.model not in packed:  # one message for all sites, and of several models one at a time
                packed.clear()
                body = {"round": self.round, "model": order.model}
                packed[order.model] = pack(Message("weights", self.run, body, {"model": models[order.model]}))
            self._post(order.site, packed[order.model], "weights")
            self._sent_models.add((order.site, order.model))
        self._post(order.site, order.content, order)

    def _take(self, ticket: Ticket, content: bytes | Fault, models: Mapping[str, State], done: dict[Order, Outcome]) -> None:
        """Take what came: note it, or send the message again to a site that has lost its memory."""
        order, again = self._open.pop(ticket, None), False
        if isinstance(order, Order):
            order.seconds = time.monotonic() - self._began
        try:
            if isinstance(content, Fault):
                again = True
                raise Lost(content.sentence, "died")
            message = self._read(ticket.site, content)
            if message.kind == "refusal":
                code, sentence = _words(message)
                again = code in ("unknown_run", "unknown_weights")
                raise Lost(f"{ticket.site} refuses ({code}): {sentence}", code)
            if not isinstance(order, Order):
                if order is None:
                    log.warning(
                        "A message of %s came that nobody waits for: it was late or sent twice, and is left out.", ticket.site
                    )
                elif order == "hello" and message.body.get("clients") != self.present[ticket.site]["clients"]:
                    raise EngineError(
                        f"Expected {ticket.site} to hold the data that it held when the run began, but they differ."
                    )
                return
            self._check(order, ticket, message)
            done[order] = message, digest_of(content)
        except (MessageError, Lost) as fault:
            if again:
                self._greeted.discard(ticket.site)
                self._sent_models = {(site, model) for site, model in self._sent_models if site != ticket.site}
            if not isinstance(order, Order):
                log.warning("%s: %s.", ticket.site, fault)
            elif again and order.tries < _TRIES:
                log.warning("%s; the message for client %d is sent again.", fault, order.client)
                self._send(order, models, {})
            else:
                done[order] = fault if isinstance(fault, Lost) else Lost(str(fault))

    def _read(self, site: str, content: bytes) -> Message:
        try:
            message = unpack(content, self.most_bytes)
        except MessageError as fault:
            raise MessageError(f"a message of {site} is not read, as {fault}") from None
        if message.run != self.run:
            raise MessageError(f"a message of {site} is of another run")
        return message

    def _check(self, order: Order, ticket: Ticket, message: Message) -> None:
        """Hold an answer to its order, before anything in it is looked at."""
        client, body = self.registry.clients[order.client].name, message.body
        if body.get("client") != order.client:
            raise Lost(f"{ticket.site} answers for client {body.get('client')!r} in the place of {client}")
        if body.get("round") != self.round:
            raise Lost(f"the answer of {client} is of round {body.get('round')!r}")
        if body.get("answers") != order.digest:
            raise Lost(f"the answer of {client} is to another message than the one that was sent")
