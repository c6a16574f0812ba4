"""Config -> Federation: the one place where the parts meet."""

import functools
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fedfacet import rng, state
from fedfacet.adapters import Adapter
from fedfacet.assembly import assemble
from fedfacet.client_setup import be_deterministic, device_of, parts_of, smaller_models, usual_memory_format
from fedfacet.clients.hooks import federated_module
from fedfacet.clients.network_trial import check_weights
from fedfacet.clients.trainer import Clients
from fedfacet.config import SETTLED, carried_over, check_saved, make, plain, without_downloads
from fedfacet.cores import num_cores
from fedfacet.data.federated import FederatedData, deal
from fedfacet.engines.auto import AutoEngine
from fedfacet.engines.base import Engine
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.models.base import static_norms
from fedfacet.models.checks import check_inputs, check_size, check_trained
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.central import CentralDP
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.provenance import facts_of, parameters_of
from fedfacet.submodels.parts import Parts

log = logging.getLogger(__name__)


def build(config: DictConfig, run_dir: Path, data: FederatedData | None = None) -> Federation:
    """Make every part of a configuration, hand each the run-time facts that it asks for, and federate; writes nothing.

    The ``data`` are loaded where they are not given.

    Raises:
        FedFacetError, ValueError, TypeError: with one sentence, where a part refuses its arguments.
    """
    engine = make(config.engine, cohort_size=1 if config.federation.pooled else config.federation.cohort_size)
    return put_together(config, run_dir, data if data is not None else load_data(config), engine)


def put_together(config: DictConfig, run_dir: Path, data: FederatedData, engine: Engine, **of_server: Any) -> Federation:
    """Make the federation of a configuration on data that are loaded; ``of_server`` goes to ``assemble``.

    Raises:
        FedFacetError, ValueError, TypeError: as in ``build``.
    """
    disclosure, privacy = _disclosure(config), _privacy(config)
    clients, parts = _clients(config, data, privacy)
    adapter, frozen = _adapter(config), clients.program.frozen_digest
    settings = plain(config)
    model = getattr(clients.objective, "model", clients.objective)
    parameters = parameters_of(model)
    facts = {
        "run_dir": run_dir,
        "run_config": settings,
        "data": data,
        "splits": data.splits,
        "local_holdout": data.local_holdout,
        "num_holding_out": sum(len(held_out) > 0 for held_out in data.local_holdout),
        "held_out_clients": data.held_out_clients,
        "group_weights": data.group_weights,
        "num_classes": data.dataset.num_classes,
        "num_attributes": data.dataset.num_attributes,
        "client_names": data.client_names,
        "inputs_read": data.dataset.inputs_read,
        "rounds": config.federation.rounds,
        "trains_on": str(clients.device),
        "parameters": parameters,
        "facts": facts_of(
            config.seed, config, of_server.get("partition_digest", data.partition.digest), clients.device, engine.name
        )
        | {"parameters": parameters},
        "model_config": settings["model"] | _model_facts(data) | (_base_facts(config, frozen) if frozen else {}),
        "export": None if adapter is None or adapter.export is None else functools.partial(adapter.export, model),
    }
    return assemble(
        clients,
        engine=engine,
        selector=make(config.selector, heterogeneity=make(config.heterogeneity)),
        aggregator=make(config.aggregator),
        participation=make(config.participation),
        scheduler=make(config.scheduler) if "scheduler" in config else None,
        devices=make(config.devices) if "devices" in config else None,
        termination=make(config.termination) if "termination" in config else None,
        parts=parts,
        disclosure=disclosure,
        server_data=data.server,
        privacy=privacy if isinstance(privacy, CentralDP) else None,
        mechanisms=[make(node) for node in (config.get("mechanisms") or {}).values()],
        callbacks={name: make(node, **facts) for name, node in {**config.callbacks, **config.logger}.items()},
        rounds=config.federation.rounds,
        cohort_size=1 if config.federation.pooled else config.federation.cohort_size,
        seed=config.seed,
        on_bad_update=config.federation.on_bad_update,
        choices=config.choices,
        **of_server,
    )


def clients_of_settings(settings: Mapping[str, Any], data: FederatedData) -> Clients:
    """Make the clients of settled settings that came from elsewhere, for some of the clients' data; it fetches nothing."""
    config = OmegaConf.create(without_downloads(settings))
    torch.set_num_threads(config.threads)
    return _clients(config, data, _privacy(config))[0]


def rebuild(settings: Mapping[str, Any], run_dir: Path) -> Federation:
    """Make the federation of a configuration as a checkpoint holds it, and have torch compute as it did there.

    Raises:
        FedFacetError, ValueError, TypeError: as in ``build``.
    """
    config = _saved(settings)
    settle(config)
    return build(config, run_dir)


def reload_data(settings: Mapping[str, Any]) -> FederatedData:
    """Load and deal the data of a configuration as a checkpoint holds it; see ``load_data``."""
    return load_data(_saved(settings))


def fresh_model(settings: Mapping[str, Any], seed: int, number: int) -> nn.Module:
    """Return the network of a configuration as a checkpoint holds it, with weights of its own for every number."""
    config = _saved(settings)
    facts = _model_facts(load_data(config))
    with rng.forked(seed, "shadow-weights", number):
        model: nn.Module = make(config.model, **facts)
        if static_norms(model):
            raise ConfigError(
                "Models that an attack trains by themselves have no federation that gathers statistics of static batch norm: "
                "attack a run with another `model.norm`, or choose attacks without such models."
            )
        if (adapter := _adapter(config)) is not None:
            adapter.fit(model)
        return model


def _saved(settings: Mapping[str, Any]) -> DictConfig:
    """Return saved settings as a config that fetches nothing: a checkpoint may come from somebody else."""
    carried_over(settings, Path("the checkpoint"))
    check_saved(settings, "the checkpoint")
    config: DictConfig = OmegaConf.create(without_downloads(settings, but_files=bool(settings.get("adapter"))))
    if isinstance(workers := config.engine.get("workers"), int):  # of another machine
        config.engine.workers = min(workers, num_cores())
    return config


def settle(config: DictConfig) -> None:
    """Write into the config what it leaves to the machine, above all what the numbers of a run depend on.

    That is torch's threads, the memory format, precision and compilation, and what ``engine=auto`` chooses, which may choose
    those too.
    """
    engine = make(config.engine)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = device_of(engine.device)
    config.memory_format = config.memory_format or usual_memory_format(device)
    if isinstance(engine, AutoEngine) and engine.choice is None:
        (clients, _), federation = _clients(config, load_data(config), _privacy(config)), config.federation
        free = {name for name in SETTLED if config[name] is None}
        choice, settled = engine.choose(clients, federation.cohort_size, federation.rounds, free)
        config.engine.choice = choice
        for name, value in settled.items():
            config[name] = value
    elif config.threads is None:
        # Beside a GPU more threads than one gain nothing, and keep all cores busy while they wait (measured on 16).
        config.threads = engine.default_threads if device.type == "cpu" else 1
    config.precision = config.precision or "32-true"
    config.compile = bool(config.compile)
    torch.set_num_threads(config.threads)


def load_data(config: DictConfig) -> FederatedData:
    """Load the data set and deal it; the last result is kept, so that the jobs of a sweep share one copy."""
    settings = plain(config)
    parts = ("dataset", "partition", "smoke", "server_data")
    data = _load_data(json.dumps({part: settings.get(part) for part in parts}, sort_keys=True))
    return data.pooled if settings.get("federation", {}).get("pooled", False) else data


@functools.lru_cache(maxsize=1)
def _load_data(parts: str) -> FederatedData:
    config = OmegaConf.create(json.loads(parts))
    source, partitioner = make(config.dataset), make(config.partition)
    if config.smoke and _is_for_samples(config.dataset.get("root")):
        source.generate(partitioner.demand)
    partition = config.partition
    data = deal(
        source.load(partitioner.demand),
        partitioner,
        local_holdout=partition.get("local_holdout", 0.0),
        seed=config.dataset.get("seed", 0),
        holdout_seed=holdout_seed(partition),
        held_out_clients=partition.get("held_out_clients", 0),
        keep_together=partition.get("keep_together"),
        server=make(config.server_data) if config.server_data is not None else None,  # older runs have no such group
    )
    if not len(data.val):
        log.warning(
            "No samples are left for validation, so there is no best-by-validation round: have each class (of each attribute "
            "value) keep ten samples or more, give clients fewer of them, or bring a validation set."
        )
    return data


def holdout_seed(partition: Any) -> int:
    """Return the seed by which clients draw what they hold out, of a configuration's partition."""
    own = partition.get("holdout_seed")
    return int(partition.get("seed", 0) if own is None else own)


def _is_for_samples(root: str | None) -> bool:
    """Tell whether a folder is one that ``debug=smoke`` has chosen: a checkpoint may name one with data of somebody's."""
    if root is None:
        return True
    of_user = Path(root).resolve().parent
    return of_user.parent == Path(tempfile.gettempdir()).resolve() and of_user.name.startswith("fedfacet-smoke-")


def _model_facts(data: FederatedData) -> dict[str, Any]:
    """Return what a model is told of the data."""
    return {"num_classes": data.dataset.num_outputs, "input_shape": data.dataset.input_shape}


def _check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Make an optimizer for once, so that it refuses its settings now rather than at the first client."""
    try:
        optimizer(model.parameters())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected settings that the `optimizer` accepts, but got this: {error}.") from None


def _clients(config: DictConfig, data: FederatedData, privacy: Privacy | None) -> tuple[Clients, Parts | None]:
    """Make the clients, and say which part of the model each holds; ``None`` where everybody holds all of it."""
    dataset = data.dataset
    device = device_of(config.engine.device)
    be_deterministic(device, bool(config.deterministic))
    optimizer = make(config.optimizer)
    adapter, settings = _adapter(config), config.model
    if config.get("resume") is not None and adapter is None:  # the checkpoint has all weights
        settings = OmegaConf.create(without_downloads(plain(config)["model"]))
    make_model = functools.partial(make, settings, **_model_facts(data))
    name = f"model={config.choices.get('model', 'model')}"
    check_size(make_model, name, adapter.fit if adapter is not None else None)
    with rng.forked(config.seed, "weights"):
        model = make_model()
    check_weights(model)
    check_inputs(model, dataset.batch(dataset.test[:1]).x, name)
    if adapter is not None:
        with rng.forked(config.seed, "adapter"):
            adapter.fit(model)
        check_trained(model, dataset.batch(dataset.test[:1]).x, f"adapter={config.choices.adapter}")
    _check_optimizer(optimizer, model)
    loss = make(config.loss)
    if dataset.targets is None:
        loss(torch.zeros(1, dataset.num_classes), dataset.batch(dataset.test[:1]))  # refuses its settings now, not at a client
    optimizer, loss = _unguarded(optimizer), _unguarded(loss)
    capacity, submodel = (make(config[group]) if group in config else None for group in ("capacity", "submodel"))
    if adapter is not None and (capacity is not None or submodel is not None):
        raise ConfigError(
            f"Expected a model that everybody holds whole for adapter={config.choices.adapter}, but weak clients hold parts: "
            "choose capacity=whole submodel=whole, or adapter=none."
        )
    parts = parts_of(capacity, submodel, model, data.partition, config.seed)
    with rng.forked(config.seed, "weights"):  # those of smaller models are overwritten by what their clients are sent
        models = [model, *smaller_models(parts, model)]
    memory_format = getattr(torch, config.memory_format or usual_memory_format(device))
    objective, *others = (
        make(config.objective, model=one, whole=model, loss=loss, correction=make(config.correction), optimizer=optimizer).to(
            device=device, memory_format=memory_format
        )
        for one in models
    )
    personal = make(config.personal)
    kept = personal.names(federated_module(objective)) if personal is not None else frozenset()
    if kept and not kept & state.travelling(federated_module(objective)).keys():
        raise ConfigError(
            f"Expected clients that train what personal={config.choices.personal} keeps, but it is frozen: choose "
            "personal=none, or have it trained too."
        )
    clients = Clients(
        objective=objective,
        optimizer=optimizer,
        dataset=dataset,
        partition=data.partition,
        held_out=data.held_out_clients.partition if data.held_out_clients is not None else None,
        local_holdout=data.holdout_partition,
        local=make(config.local),
        transforms=[make(node) for node in config.transforms.values()],
        device=device,
        memory_format=memory_format,
        precision=config.precision or "32-true",
        compile=bool(config.compile),
        personal=kept,
        whole_fingerprint=config.get("fingerprint") == "whole",
        other_objectives=others,
        privacy=privacy if isinstance(privacy, DPSGD) else None,
        server_privacy=privacy if isinstance(privacy, CentralDP) else None,
        hides_attributes=(disclosure := _disclosure(config)) is not None and disclosure.hides_attributes,
    )
    return clients, parts


def _adapter(config: DictConfig) -> Adapter | None:
    adapter: Adapter | None = make(config.adapter) if "adapter" in config else None
    return adapter


def _base_facts(config: DictConfig, frozen_digest: str) -> dict[str, Any]:
    """Return how a frozen base is made again, which is not saved."""
    adapter = {"adapter": plain(config)["adapter"]} if config.get("adapter") else {}
    return {"frozen_base": adapter | {"seed": config.seed, "digest": frozen_digest}}


def _privacy(config: DictConfig) -> Privacy | None:
    privacy: Privacy | None = make(config.privacy) if "privacy" in config else None
    return privacy


def _disclosure(config: DictConfig) -> DisclosurePolicy | None:
    policy: DisclosurePolicy | None = make(config.disclosure) if "disclosure" in config else None
    return policy


def _unguarded(factory: Any) -> Any:
    """Return what Hydra made of a ``_partial_`` node without the check of its target, which by now has been passed.

    Hydra's own partial repeats that at every call: 40 microseconds a step, a quarter of a small model's.
    """
    return (
        functools.partial(factory.func, *factory.args, **factory.keywords)
        if isinstance(factory, functools.partial)
        else factory
    )
