"""A site: it answers messages from its own data. All that a server can have of it is written here."""

import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedfacet import __version__
from fedfacet.build import clients_of_settings, holdout_seed
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.trainer import Clients
from fedfacet.data.federated import FederatedData, hold_out_locally
from fedfacet.deploy.agreement import agreed, check_overrides, differences, settings_digest, versions
from fedfacet.deploy.card import Card
from fedfacet.deploy.memory import SiteDisk
from fedfacet.deploy.protocol import BUNDLES, PLAIN, PROTOCOL, Message, MessageError, digest_of, pack, unpack
from fedfacet.deploy.questions import from_plain, known_queries
from fedfacet.deploy.samples import digest_of_samples, read_samples, site_key
from fedfacet.deploy.settings import SiteSettings
from fedfacet.errors import (
    ConfigError,
    DatasetCorruptError,
    DatasetNotFoundError,
    FedFacetError,
    fault_of,
)
from fedfacet.types import Broadcast, ClientTask, Partition, Query, State

log = logging.getLogger(__name__)

_MOST_ORDERS = 3  # for a client and a round, of a server that goes on from a checkpoint after as many hellos
_MOST_REMEMBERED = 10**6  # rounds of clients whose orders are known again
_MOST_CLIENTS = 10**7  # of a federation: a site makes a list of so many


class Refused(FedFacetError):
    """What the site does not do; ``code`` says of which kind that is."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def refusing() -> Callable[[bytes], bytes]:
    """Return what answers messages in the place of a site that cannot be opened; its operator alone is told why."""
    sentence = "it cannot be opened, as `client.py check` tells its operator"

    def answer(content: bytes) -> bytes:
        run = unpack(content, len(content)).run
        details = {"code": "data", "sentence": sentence, "answers": digest_of(content)}
        return pack(Message("refusal", run, details))

    return answer


@dataclass(slots=True)
class _Run:
    """The run that a site serves: who takes part, and the round's models."""

    hello: str
    answer: Message
    run: str
    clients: Clients
    names: Mapping[int, str]
    keeps_rounds: int | None
    round: int = 0
    models: dict[str, State] = field(default_factory=dict)


def _check_names(body: Mapping[str, Any]) -> None:
    """Refuse a message that calls a round, a client or a model by what may not be a part of a file's name.

    Raises:
        Refused: naming the first.
    """
    for name, value in body.items():
        if name in ("model", "memory_round") and value is None:
            continue
        whole = type(value) is int and 0 <= value < (_MOST_CLIENTS if name == "client" else 10**9)
        digest = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None
        if (name in ("round", "client", "memory_round") and not whole) or (name == "model" and not digest):
            raise Refused("letter", f"its `{name}` is {str(value)[:40]!r}")


def _counts_of(query: Query, value: Any) -> Any:
    """Return what of an answer are numbers of samples, of classes or of groups."""
    if query.kind == "group_performance":
        return value[1]
    return value if query.kind in ("label_counts", "joint_counts") else []


class Site:
    """Answers messages, one after another; it remembers the run and the round's models, and everything else lies on its disk.

    Args:
        settings: of its operator.
        remembers: whether what it does is kept on the disk: clients' memory, the audit and messages.

    Raises:
        FedFacetError: if the card, the policy or a client's samples are not what they must be.
    """

    def __init__(self, settings: SiteSettings, *, remembers: bool = True) -> None:
        self.settings = settings
        self.remembers = remembers
        self.card = Card.read(settings.card)
        self.samples = read_samples(settings.clients, self.card)
        self.disk = SiteDisk(settings.state)
        if unknown := sorted(set(settings.policy.queries) - set(known_queries())):
            raise ConfigError(
                f"Expected `policy.queries` of known names, but got {unknown[0]!r}: they are {', '.join(known_queries())}."
            )
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        site_key(settings.state, keep=False)  # refuses one that is damaged
        self._most_bytes = int(settings.policy.max_letter_mb * 2**20)
        self._run: _Run | None = None
        self._hellos: Counter[str] = Counter()
        self._orders: dict[tuple[str, int, int], list[str]] = {}
        self._note = ""  # on the hello that is answered, for the operator

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a message; what goes wrong here is one sentence there, never a traceback."""
        began, digest, message, more = time.perf_counter(), digest_of(content), Message("none", ""), ""
        self._note = ""
        try:
            message = unpack(content, self._most_bytes)
            steps: dict[str, Callable[[Message, str], Message]] = {
                "hello": self._hello,
                "weights": self._weights,
                "query": self._query,
                "train": self._train,
            }
            _check_names(message.body)
            if message.kind not in steps:
                raise Refused("letter", f"a message of the kind {message.kind!r} is not known here")
            if message.kind != "hello" and (self._run is None or self._run.run != message.run):
                raise Refused("unknown_run", "the run has not said hello since this site has started")
            reply = steps[message.kind](message, digest)
        except Refused as refusal:
            reply = Message("refusal", message.run, {"code": refusal.code, "sentence": str(refusal)})
        except MessageError as error:
            reply = Message("refusal", message.run, {"code": "letter", "sentence": f"a message is not read: {error}"})
        except Exception as error:
            sentence, ours = fault_of(error), isinstance(error, FedFacetError)
            if not ours or isinstance(error, DatasetCorruptError | DatasetNotFoundError):  # a file may have a patient's name
                more, sentence = sentence, f"{type(error).__name__}, of which audit.jsonl tells its operator more"
            reply = Message("refusal", message.run, {"code": "failed", "sentence": sentence})
        answer = pack(Message(reply.kind, reply.run, {**reply.body, "answers": digest}, reply.bundles))
        if self.remembers and self.settings.keep_letters and reply.kind in ("hello", "ok", "update"):
            self.disk.keep_message(message, content)
        if self.remembers:
            self._audit(message, content, reply, answer, time.perf_counter() - began, more)
        return answer

    def digest_of_answer(self, content: bytes) -> str:
        """Return the digest of the answer to a message.

        Raises:
            MessageError: if the site refuses it.
        """
        answer = self.answer(content)
        message = unpack(answer, len(answer))
        if message.kind == "refusal":
            raise MessageError(
                f"Expected the site to answer its own messages again, but it refuses: {message.body['sentence']}."
            )
        return digest_of(answer)

    def _hello(self, message: Message, digest: str) -> Message:
        """Make the clients of a run, or refuse it."""
        body = message.body
        if self._run is not None and self._run.hello == digest:
            self._hellos[message.run] += 1
            return self._run.answer
        names, settings, shares = self._accepted(message)
        clients = clients_of_settings(settings, self._data(settings, names, body["num_clients"], shares))
        key, before = site_key(self.settings.state, keep=self.remembers)
        key = b"" if message.run in before else key
        answer = Message(
            "hello",
            message.run,
            {
                "clients": {
                    name: [len(clients.partition.indices[k]), digest_of_samples(self.samples[name], key), shares[name]]
                    for k, name in names.items()
                },
                "queries": list(self.settings.policy.queries),
                "versions": {**versions(), "protocol": PROTOCOL},
                "threads": torch.get_num_threads(),
                "device": clients.device.type,
            },
        )
        self._hellos[message.run] += 1
        self._run = _Run(digest, answer, message.run, clients, names, body["keeps_rounds"])
        return answer

    def _accepted(self, message: Message) -> tuple[dict[int, str], dict[str, Any], dict[str, float]]:
        """Return the names by number, the settings and the held-out shares by name of a run, or refuse it."""
        body, policy = message.body, self.settings.policy
        names = self._names(message)
        settings = agreed(check_overrides(body["overrides"]))
        if settings_digest(settings) != body["settings"]:
            raise Refused("settings", "the run's settings come to others here: the yamls or the versions of FedFacet differ")
        for group, allowed in policy.options.items():
            if (chosen := settings["choices"].get(group)) not in allowed:
                raise Refused("policy", f"{group}={chosen} is not among the operator's `policy.options`")
        settings["engine"]["device"] = self.settings.device
        shares = {name: self.settings.clients[name].holdout for name in names.values()}
        fault = self.disk.other_draw(
            {name: [holdout_seed(settings["partition"]), k] for k, name in names.items() if shares[name]}, keep=self.remembers
        )
        if fault is not None:
            raise Refused("data", fault)
        return names, settings, shares

    def _names(self, message: Message) -> dict[int, str]:
        """Return the names of a run's clients by number, or refuse it if it is not of these versions, this card and roster."""
        body, policy = message.body, self.settings.policy
        if not (len(message.run) == 32 and set(message.run) <= set("0123456789abcdef")):
            raise Refused("letter", "a run has a name of 32 hexadecimal digits")
        if (theirs := str(body["versions"]["fedfacet"])[:40]) != __version__:
            raise Refused("version", f"FedFacet {__version__} is installed here, and the server has {theirs}")
        if other := differences(body["versions"]):
            self._note = f"the server has {other}: updates may not be those of a simulation"
            log.warning("%s: %s.", self.settings.site, self._note)
        if body["card"] != self.card.digest:
            raise Refused("card", f"the server's data card is another one than {self.settings.card.name} here")
        names = {number: name for name, number in body["clients"].items()}
        if strangers := sorted(set(names.values()) ^ set(self.samples)):
            raise Refused(
                "data", f"the roster and client.yaml do not have the same clients here: {strangers[0]} is not in both"
            )
        if not (
            type(number := body["num_clients"]) is int
            and 0 < number <= _MOST_CLIENTS
            and all(type(k) is int and 0 <= k < number for k in names)
        ):
            raise Refused("letter", f"clients have numbers below `num_clients`, and that is {_MOST_CLIENTS:,} at most")
        for name, (_, y, _) in self.samples.items():
            if len(y) < policy.min_samples:
                raise Refused("too_few_samples", f"{name} has fewer samples than the {policy.min_samples} of its operator")
        return names

    def _weights(self, message: Message, digest: str) -> Message:
        """Take a model of the round; those of other rounds go."""
        run, body = self._serving, message.body
        if run.round != body["round"]:
            run.round, run.models = int(body["round"]), {}
        run.models[str(body["model"])] = message.bundles.get("model", {})
        return Message("ok", message.run)

    def _query(self, message: Message, digest: str) -> Message:
        """Have a client answer a query that the operator has listed."""
        name = message.body["query"]["name"]
        if name not in self.settings.policy.queries:
            raise Refused(
                "policy", f"{self.settings.site} does not answer `{name}`: it is not among the operator's `policy.queries`"
            )
        task = self._task(message)
        query = from_plain(message.body["query"])
        answer = answer_query(self._serving.clients, query, task)
        counts, least = np.array(_counts_of(query, answer.value)), self.settings.policy.min_counted
        if ((counts > 0) & (counts < least)).any():  # with noise or without, as the server says how much of it there is
            raise Refused(
                "too_few_samples",
                f"a class or group of the client has fewer samples than the {least} of its operator's `policy.min_counted`",
            )
        return Message("answer", message.run, {"client": task.client_id, "round": task.round, **answer._asdict()})

    def _train(self, message: Message, digest: str) -> Message:
        """Have a client train; what it keeps stays here."""
        run, task = self._serving, self._task(message)
        if (steps := run.clients.num_steps(task)) > (most := self.settings.policy.max_steps):
            raise Refused(
                "policy", f"a client would take {steps} steps, more than the {most} of the operator's `policy.max_steps`"
            )
        self._admit(task, digest)
        update = run.clients.train(task)
        if update.memory and self.remembers:
            oldest = None if run.keeps_rounds is None else task.round - run.keeps_rounds
            self.disk.put(run.run, task.client_id, task.round, update.memory, oldest)
        body = {
            "client": task.client_id,
            "round": task.round,
            **{name: getattr(update, name) for name in (*PLAIN, "silent", "num_lost")},
            "metrics": dict(update.metrics),
            "keeps": bool(update.memory),
        }
        return Message("update", message.run, body, {bundle: getattr(update, bundle) for bundle in BUNDLES})

    def _admit(self, task: ClientTask, digest: str) -> None:
        """Refuse a second order for a client's round; the same order gives the same update, as where that was lost on its way.

        A server that goes on from a checkpoint does rounds again, and may do them in another way.
        """
        run = self._serving.run
        known = self._orders.setdefault((run, task.client_id, task.round), [])
        if digest in known:
            return
        if len(known) >= min(self._hellos[run], _MOST_ORDERS):
            raise Refused("policy", f"client {task.client_id} has had another order in round {task.round}, and trains once")
        known.append(digest)
        if len(self._orders) > _MOST_REMEMBERED:
            del self._orders[next(iter(self._orders))]

    @property
    def _serving(self) -> _Run:
        assert self._run is not None  # `answer` has seen to it
        return self._run

    def _task(self, message: Message) -> ClientTask:
        """Return the order of a message, with the round's model and what the client keeps."""
        run, body = self._serving, message.body
        if body["client"] not in run.names:
            raise Refused("data", f"client {body['client']} is not one of this site")
        model: State = {}
        if body["model"] is not None:
            if run.round != body["round"] or body["model"] not in run.models:
                raise Refused("unknown_weights", "the model has not come to this site since it has started")
            model = run.models[body["model"]]
        policy, kept = self.settings.policy, body["memory_round"]
        for name, most in (("step_fraction", policy.max_step_fraction), ("lr_factor", policy.max_lr_factor)):
            factor = body[name]
            if type(factor) not in (int, float) or not factor >= 0:
                raise Refused("letter", f"its `{name}` is {str(factor)[:40]!r}")
            if factor > most:
                raise Refused(
                    "policy", f"its `{name}` is {factor:g}, more than the {most:g} of the operator's `policy.max_{name}`"
                )
        return ClientTask(
            client_id=body["client"],
            round=body["round"],
            seed=body["seed"],
            broadcast=Broadcast(model, message.bundles.get("extras", {})),
            memory={} if kept is None else self.disk.get(run.run, body["client"], kept),
            step_fraction=body["step_fraction"],
            lr_factor=body["lr_factor"],
        )

    def _data(
        self, settings: Mapping[str, Any], names: Mapping[int, str], num_clients: int, shares: Mapping[str, float]
    ) -> FederatedData:
        """Return the site's samples, one client's after another, with what each holds out as it would in simulation."""
        order, nothing = sorted(names), np.empty(0, np.int64)
        dataset = self.card.dataset(*(self.samples[names[number]] for number in order))
        ends = np.cumsum([0, *(len(self.samples[names[number]][1]) for number in order)])
        own = {number: np.arange(*ends[place : place + 2]) for place, number in enumerate(order)}
        partition = Partition(tuple(own.get(number, nothing) for number in range(num_clients)))
        parts = [shares[names[number]] if number in names else 0.0 for number in range(num_clients)]
        left, held_out = hold_out_locally(dataset.y, partition, parts, seed=holdout_seed(settings["partition"]))
        return FederatedData(dataset, left, val=dataset.test[:0], local_holdout=held_out)

    def _audit(self, message: Message, content: bytes, reply: Message, answer: bytes, seconds: float, more: str) -> None:
        """Write down what came and what left, and of a fault what did not."""
        details = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "run": message.run,
            "kind": message.kind,
            **{name: message.body[name] for name in ("round", "client", "query") if name in message.body},
            "bytes_in": len(content),
            "answer": reply.kind,
            "bytes_out": len(answer),
            "digest": digest_of(answer),
            "seconds": round(seconds, 3) if math.isfinite(seconds) else None,
            **({name: reply.body[name] for name in ("code", "sentence")} if reply.kind == "refusal" else {}),
            **({"fault": more} if more else {}),
            **({"note": self._note} if self._note else {}),
        }
        with open(self.settings.state / "audit.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(details) + "\n")
