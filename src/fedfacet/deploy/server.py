"""The server's half of a federation: everything but the data, which stay at the sites."""

import hashlib
import inspect
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedfacet.build import put_together
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.compatibility import questions
from fedfacet.config import make, plain, targets
from fedfacet.config.kinds import find_target
from fedfacet.data.federated import FederatedData
from fedfacet.deploy.agreement import overrides_for_sites, settings_digest
from fedfacet.deploy.card import Card
from fedfacet.deploy.client_registry import ClientRegistry
from fedfacet.deploy.engine import DeployedEngine, Shortfall
from fedfacet.deploy.journal import Journal, OwnParticipation
from fedfacet.deploy.transport import Transport
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.federation import Federation
from fedfacet.mechanism import Mechanism, Round
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.participation import available_of
from fedfacet.query_session import ClientsAway
from fedfacet.records import RoundResult
from fedfacet.storage.atomic_write import write_synced
from fedfacet.storage.run_files import Keys, is_there, json_of, sealed_json
from fedfacet.types import Partition, Query

_OF_DATA = {"data", "splits", "local_holdout", "held_out_clients", "group_weights"}
SAVED = "deploy.json"


class DeployedFederation(Federation):
    """A federation whose clients may be away when they are asked: the round then begins anew without them."""

    engine: DeployedEngine

    def run_round(self) -> RoundResult:
        """Run one round; see ``round.run_round``."""
        self.engine.exchange.on_wait = self.check_stop
        self.engine.begin(self.state.round + 1)
        return super().run_round()

    def refuse_answers(self, number: int, query: Query, faults: Mapping[int, str]) -> None:
        """Have clients away whose answers do not count: what one site says never ends a run, whatever ``on_bad_update`` is."""
        for client_id, fault in faults.items():
            self.engine.refuse(query, client_id, fault)
        raise ClientsAway(faults)


class SitesAway(Mechanism):
    """Tells the engine who is away in the round as their answers do not count, before it is asked who is there."""

    def __init__(self, engine: DeployedEngine) -> None:
        self._engine = engine

    def available(self, round: Round) -> None:
        """Tell it."""
        self._engine.away, self._engine.record.answered = round.away, {}


class LiveParticipation(OwnParticipation):
    """Those take part whose site is connected, of those that the run's own participation has take part."""

    def __init__(self, federation: DeployedFederation) -> None:
        super().__init__(federation)
        self._engine = federation.engine

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return them.

        Raises:
            Shortfall: if no site is connected, or no client is left that answers.
        """
        engine, there = self._engine, self._engine.exchange.transport.sites()
        connected = {k for k in range(num_clients) if there.get(engine.registry.clients[k].site)}
        here = connected - engine.away
        if connected and not here:
            raise Shortfall(
                f"Expected an answer that counts in round {engine.record.round}, but {len(engine.away)} clients are away "
                "without one: see in the log why, and go on by resume"
            )
        if not here:
            raise Shortfall(
                f"Expected a site that is connected in round {engine.record.round}, but none is: go on by resume when one is"
            )
        engine.record.available = tuple(k for k in available_of(self._inner, num_clients, rng) if k in here)
        return engine.record.available


def build_server(config: Any, run_dir: Path, *, transport: Transport, overrides: Sequence[str]) -> DeployedFederation:
    """Make the federation of a settled configuration, whose data are at sites.

    Args:
        config: of ``conf/serve.yaml``.
        run_dir: the run folder, which need not exist.
        transport: reaches the sites.
        overrides: from which the configuration was composed.

    Raises:
        ConfigError: in one sentence, what does not fit: settings, a site's data, versions or policy.
        CheckpointError: if the roster is not the one that the run was started with.
    """
    settings = plain(config)
    _check_settings(config, settings)
    card, registry = Card.read(Path(config.card)), ClientRegistry.read(Path(config.roster))
    saved = _saved(run_dir, registry)
    kept = settings["callbacks"].get("save_checkpoint") or {}
    settled = [f"{name}={settings[name]}" for name in ("threads", "memory_format", "precision", "compile")]
    greeting = {
        "card": card.digest,
        "overrides": overrides_for_sites([*overrides, *settled]),
        "settings": settings_digest(settings),
        "keeps_rounds": None if kept.get("keep") == "all" else 3 * kept.get("every_n_rounds", 1) + 1,  # past previous.ckpt
    }
    engine: DeployedEngine = make(config.sites, transport=transport, registry=registry, run=saved["run"], greeting=greeting)
    engine.exchange.greet()
    reported = [engine.exchange.reported(client) for client in range(len(registry.clients))]
    # As many samples as each client has, all of them the card's blank one: what counts samples finds the true numbers.
    partition = Partition(tuple(np.zeros(number, np.int64) for number, _, _ in reported))
    known = json.dumps([[member.name, *of[1:]] for member, of in zip(registry.clients, reported, strict=True)])
    federation = put_together(
        config,
        run_dir,
        FederatedData(
            card.dataset(),
            partition,
            val=np.empty(0, np.int64),
            local_holdout=tuple(np.zeros(int(share > 0), np.int64) for _, _, share in reported),
        ),
        engine,
        partition_digest=hashlib.sha256(known.encode()).hexdigest(),
        kind=DeployedFederation,
    )
    assert isinstance(federation, DeployedFederation)
    # From here on the first model is in the state, and the sites train: elsewhere shapes will do.
    federation.facts = replace(federation.facts, model={name: _shape_of(one) for name, one in federation.facts.model.items()})
    if not federation.facts.frozen_digest:
        for program in engine.clients.programs:
            for tensor in (*program.module.parameters(), *program.module.buffers()):
                tensor.data = _shape_of(tensor.data)
    for query, asked_by in questions(
        federation.selector, federation.aggregator, federation.callbacks, federation.mechanisms, config.choices
    ):
        engine.check_query(query, asked_by)
    federation.put(SitesAway(engine))
    federation.put(ClientParticipation(LiveParticipation(federation)))
    federation.put(Callbacks({"journal": Journal(run_dir, engine), **federation.callbacks}))
    return federation


def _shape_of(tensor: Tensor) -> Tensor:
    """Return a tensor of zeros like another, in the memory of a single one."""
    return tensor.new_zeros(()).expand(tensor.shape)


def save_names(run_dir: Path, federation: DeployedFederation) -> None:
    """Write what a resume must know besides the configuration: the run's name and the roster."""
    exchange = federation.engine.exchange
    holdout = [exchange.reported(client)[2] for client in range(len(exchange.registry.clients))]
    saved = {"run": exchange.run, "roster": exchange.registry.plain, "holdout": holdout}
    write_synced(run_dir / SAVED, [sealed_json(saved).encode()])


def read_saved(run_dir: Path) -> Mapping[str, Any]:
    """Return what ``save_names`` has written.

    Raises:
        CheckpointError: if it is missing, damaged or of another form.
    """
    saved: Mapping[str, Any] = json_of(run_dir / SAVED, _KEYS)
    return saved


_KEYS: Keys = {
    "run": lambda value: isinstance(value, str),
    "roster": lambda value: (
        isinstance(value, list) and all(isinstance(one, list) and list(map(type, one)) == [str, str] for one in value)
    ),
    "holdout": lambda value: isinstance(value, list) and all(type(share) in (int, float) and 0 <= share < 1 for share in value),
}


def _saved(run_dir: Path, registry: ClientRegistry) -> Mapping[str, Any]:
    """Return the name of the run of a folder, or a new one."""
    if not is_there(run_dir / SAVED):
        return {"run": uuid.uuid4().hex}
    saved = read_saved(run_dir)
    if saved["roster"] != registry.plain:
        changed = next(
            (f"client {n} was {was}" for n, was in enumerate(saved["roster"]) if registry.plain[n : n + 1] != [was]),
            "it has more clients",
        )
        raise CheckpointError(
            f"Expected the roster that the run was started with, but {changed}: bring it back, or start a new run."
        )
    return saved


def _check_settings(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse what needs the data, or a clock that is simulated."""
    choices, partition = settings["choices"], settings["partition"]
    for refused, what in (
        (choices["devices"] != "none", "`devices`, whose clocks are simulated: choose devices=none"),
        (choices["server_data"] != "none", "`server_data`, as the server has no samples: choose server_data=none"),
        (settings["federation"]["pooled"], "`setting`, which pools clients' samples: choose setting=federated"),
        (choices["engine"] != "sequential", "`engine`, as the sites run the clients: leave it out"),
        (bool(partition.get("local_holdout")), "`partition.local_holdout`, as operators say it in client.yaml: leave it 0"),
        (bool(partition.get("held_out_clients")), "`partition.held_out_clients`: leave them out of the roster"),
    ):
        if refused:
            raise ConfigError(f"Expected settings that do without the clients' data, but got {what}.")
    for name, node in targets(config.callbacks):
        needs = _OF_DATA & set(inspect.signature(find_target(name, node["_target_"])).parameters)
        if needs:
            raise ConfigError(
                f"Expected callbacks that need no data, but `{name}` wants `{min(needs)}`: leave it out (callbacks=deployed)."
            )
