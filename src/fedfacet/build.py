"""Config -> Federation: the one place where the parts meet."""

import functools
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fedfacet import __version__, rng
from fedfacet.clients.hooks import federated_module
from fedfacet.clients.program import Clients
from fedfacet.clients.queries.base import Query
from fedfacet.config import SETTLED, make, plain
from fedfacet.data.dataset import Dataset
from fedfacet.data.local_holdout import hold_out_locally
from fedfacet.data.validation import partition_and_hold_out
from fedfacet.engines.auto import AutoEngine
from fedfacet.engines.base import Engine
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.types import WEIGHTED_DRAWS, Partition

log = logging.getLogger(__name__)

OPTIONAL = frozenset({WEIGHTED_DRAWS})
"""What a part may give though nobody needs it, since it costs nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData:
    """A data set, who trains on which of its samples, which of them validate, and which every client holds out for itself."""

    dataset: Dataset
    partition: Partition
    val: NDArray[np.int64]
    local_holdout: tuple[NDArray[np.int64], ...] = ()

    @property
    def pooled(self) -> "FederatedData":
        """The same data in the hands of one client, who also measures with what all clients hold out."""
        holdout = Partition(self.local_holdout).pooled.indices
        return replace(self, partition=self.partition.pooled, local_holdout=holdout)

    @property
    def matrices(self) -> list[InteractionMatrix]:
        """The clients' true interaction matrices."""
        shape = self.dataset.num_classes, self.dataset.num_attributes
        return [
            InteractionMatrix.from_labels(self.dataset.y[client], self.dataset.a[client], *shape)
            for client in self.partition.indices
        ]


def build(config: DictConfig, run_dir: Path) -> Federation:
    """Make every part, hand each the run-time facts it asks for, and put them together; writes nothing.

    Raises:
        FedFacetError, ValueError, TypeError: with one sentence, where a part refuses its arguments.
    """
    data = load_data(config)
    dataset, partition = data.dataset, data.partition
    selector = make(config.selector, heterogeneity=make(config.heterogeneity))
    engine = make(config.engine)
    clients = _clients(config, data)
    engine.setup(clients)
    facts = {
        "run_dir": run_dir,
        "run_config": plain(config),
        "data": data,
        "splits": {"val": data.val, "test": dataset.test},
        "local_holdout": data.local_holdout,
        "group_weights": np.sum([matrix.counts for matrix in data.matrices], axis=0).ravel().tolist(),
        "num_attributes": dataset.num_attributes,
        "rounds": config.federation.rounds,
        "trains_on": str(clients.device),
        "facts": _facts(config, data, clients.device, engine),
        "model_config": plain(config)["model"] | {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape},
    }
    aggregator, participation = make(config.aggregator), make(config.participation)
    clients_parts = {"correction": getattr(clients.objective, "correction", None), "objective": clients.objective}
    check_pairs(
        {**clients_parts, "aggregator": aggregator, "selector": selector, "participation": participation}, config.choices
    )
    for query in vars(selector).values():
        if isinstance(query, Query):
            query.check(clients.program.module)
    return Federation(
        facts=clients.facts,
        partition_digest=partition.digest,
        engine=engine,
        selector=selector,
        aggregator=aggregator,
        participation=participation,
        rounds=config.federation.rounds,
        cohort_size=1 if config.federation.pooled else config.federation.cohort_size,
        seed=config.seed,
        on_bad_update=config.federation.on_bad_update,
        scheduler=make(config.scheduler) if "scheduler" in config else None,
        callbacks={name: make(node, **facts) for name, node in {**config.callbacks, **config.logger}.items()},
    )


def check_pairs(parts: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Refuse a method of which only a half was chosen: every name that one part needs some part must give, and the reverse.

    Args:
        parts: group -> part, each with ``gives`` and ``needs`` where it has any.
        choices: group -> the option that was chosen, for the message.

    Raises:
        ConfigError: naming the half that is there, and what it lacks.
    """
    gives: dict[str, frozenset[str]] = {group: getattr(part, "gives", frozenset()) for group, part in parts.items()}
    needs: dict[str, frozenset[str]] = {group: getattr(part, "needs", frozenset()) for group, part in parts.items()}
    given, needed = (frozenset[str]().union(*sets.values()) for sets in (gives, needs))
    for group, names in needs.items():
        if lacking := sorted(names - given):
            raise ConfigError(
                f"Expected a part that gives {lacking[0]!r}, which {group}={choices.get(group)} needs, but there is none: "
                "choose the other half of the method too (`method=` chooses both), or leave this half out."
            )
    for group, names in gives.items():
        if unused := sorted(names - needed - OPTIONAL):
            raise ConfigError(
                f"Expected a part that needs {unused[0]!r}, which {group}={choices.get(group)} gives, but there is none: "
                "choose the other half of the method too (`method=` chooses both), or leave this half out."
            )


def rebuild(settings: Mapping[str, Any], run_dir: Path) -> Federation:
    """Make the federation of a configuration as a checkpoint holds it, and have torch compute as it did there.

    Raises:
        FedFacetError, ValueError, TypeError: as in ``build``.
    """
    config = OmegaConf.create(dict(settings))
    settle(config)
    return build(config, run_dir)


def reload_data(settings: Mapping[str, Any]) -> FederatedData:
    """Load and deal the data of a configuration as a checkpoint holds it; see ``load_data``."""
    return load_data(OmegaConf.create(dict(settings)))


def settle(config: DictConfig) -> None:
    """Write into the config what it leaves to the machine, above all what the numbers of a run depend on.

    That is torch's threads, the memory format, precision and compilation, and what ``engine=auto`` chooses, which may choose
    those too.
    """
    engine = make(config.engine)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    config.memory_format = config.memory_format or _memory_format(_device(engine.device))
    if isinstance(engine, AutoEngine) and engine.choice is None:
        clients, federation = _clients(config, load_data(config)), config.federation
        free = {name for name in SETTLED if config[name] is None}
        choice, settled = engine.choose(clients, federation.cohort_size, federation.rounds, free)
        config.engine.choice = choice
        for name, value in settled.items():
            config[name] = value
    elif config.threads is None:
        config.threads = engine.default_threads
    config.precision = config.precision or "32-true"
    config.compile = bool(config.compile)
    torch.set_num_threads(config.threads)


def load_data(config: DictConfig) -> FederatedData:
    """Load the data set and deal it; the last result is kept, so that the jobs of a sweep share one copy."""
    settings = plain(config)
    data = _load_data(json.dumps({part: settings.get(part) for part in ("dataset", "partition", "smoke")}, sort_keys=True))
    return data.pooled if settings.get("federation", {}).get("pooled", False) else data


@functools.lru_cache(maxsize=1)
def _load_data(parts: str) -> FederatedData:
    config = OmegaConf.create(json.loads(parts))
    source, partitioner = make(config.dataset), make(config.partition)
    if config.smoke:
        source.generate(partitioner.demand)
    dataset = source.load(partitioner.demand)
    partition, val = partition_and_hold_out(dataset, partitioner, seed=config.dataset.get("seed", 0))
    if not len(val):
        log.warning("No samples are left for validation, so there is no best-by-validation round: use fewer training samples.")
    share, seed = config.partition.get("local_holdout", 0.0), config.partition.get("seed", 0)
    partition, local_holdout = hold_out_locally(dataset.y, partition, share, seed=seed)
    return FederatedData(dataset, partition, val, local_holdout)


def _clients(config: DictConfig, data: FederatedData) -> Clients:
    """Make the clients."""
    dataset = data.dataset
    device = _device(config.engine.device)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(bool(config.deterministic))
    optimizer = make(config.optimizer)
    with rng.forked(config.seed, "weights"):
        model = make(config.model, num_classes=dataset.num_classes, input_shape=dataset.input_shape)
    _check_optimizer(optimizer, model)
    loss = make(config.loss)
    loss(torch.zeros(1, dataset.num_classes), dataset.batch(dataset.test[:1]))  # refuses its settings now, not at a client
    optimizer, loss = _unguarded(optimizer), _unguarded(loss)
    objective = make(config.objective, model=model, loss=loss, correction=make(config.correction), optimizer=optimizer)
    memory_format = getattr(torch, config.memory_format or _memory_format(device))
    personal = make(config.personal)
    return Clients(
        objective=objective.to(device=device, memory_format=memory_format),
        optimizer=optimizer,
        dataset=dataset,
        partition=data.partition,
        local=make(config.local),
        transforms=[make(node) for node in config.transforms.values()],
        device=device,
        memory_format=memory_format,
        precision=config.precision or "32-true",
        compile=bool(config.compile),
        personal=personal.names(federated_module(objective)) if personal is not None else frozenset(),
    )


def _unguarded(factory: Any) -> Any:
    """Return what Hydra made of a ``_partial_`` node without the check of its target, which by now has been passed.

    Hydra's own partial repeats that at every call: 40 microseconds a step, a quarter of a small model's.
    """
    return (
        functools.partial(factory.func, *factory.args, **factory.keywords)
        if isinstance(factory, functools.partial)
        else factory
    )


def _check_optimizer(optimizer: OptimizerFactory, model: nn.Module) -> None:
    """Make an optimizer for once, so that it refuses its settings now rather than at the first client."""
    try:
        optimizer(model.parameters())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected settings that the `optimizer` accepts, but got this: {error}.") from None


def _device(name: str) -> torch.device:
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Expected `engine.device` to name a device of this machine, but got {name!r} ({str(error).splitlines()[0]}): give "
            "auto, cpu, cuda or cuda:N."
        ) from None
    return device


def _memory_format(device: torch.device) -> str:
    """Return where the channels of images lie: last on a CPU, whose convolutions are 1.2 to 1.6 times as fast so (measured)."""
    return "channels_last" if device.type == "cpu" else "contiguous_format"


def _facts(config: DictConfig, data: FederatedData, device: torch.device, engine: Engine) -> dict[str, Any]:
    """Return what a summary should say about where a run's numbers come from."""
    on_gpu = device.type == "cuda"
    return {
        "seed": config.seed,
        "partition_digest": data.partition.digest,
        "engine": engine.name,
        "threads": torch.get_num_threads(),
        **{name: config[name] for name in ("memory_format", "precision", "compile")},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            "cpu_count": os.cpu_count(),
            "system": platform.system(),
        },
        "versions": {"fedfacet": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "torchvision", "lightning", "numpy")},
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Return the commit of the checkout that this file lies in, with ``+`` where it has changes, or ``None``."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
