"""Config -> Federation: the one place where the parts meet."""

import functools
import json
import logging
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fedfacet import __version__, rng, state
from fedfacet.clients.local_training import federated_module
from fedfacet.clients.runtime import ClientRuntime
from fedfacet.config import make, plain
from fedfacet.data.dataset import Dataset
from fedfacet.data.validation import partition_and_hold_out
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.types import Partition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData:
    """A data set, who owns which of its samples, and which of them validate."""

    dataset: Dataset
    partition: Partition
    val: NDArray[np.int64]

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
    selector_facts = {"heterogeneity": make(config.heterogeneity)}
    selector = make(config.selector, **selector_facts)
    engine = make(config.engine)
    device = _device(engine.device)
    if device.type == "cuda" and config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
    optimizer = make(config.optimizer)
    with rng.forked(config.seed, "weights"):
        model = make(config.model, num_classes=dataset.num_classes, image_shape=_image_shape(dataset))
    _check_optimizer(optimizer, model)
    loss = make(config.loss)
    loss(torch.zeros(1, dataset.num_classes), dataset.batch(dataset.test[:1]))  # refuses its settings now, not at a client
    objective = make(config.objective, model=model, loss=loss, correction=make(config.correction), optimizer=optimizer).to(
        device
    )
    transforms = [make(node) for node in config.transforms.values()]
    runtime = ClientRuntime(objective, optimizer, dataset, partition, make(config.local), transforms, device)
    engine.setup(runtime)
    facts = {
        "run_dir": run_dir,
        "run_config": plain(config),
        "data": data,
        "splits": {"val": data.val, "test": dataset.test},
        "group_weights": np.sum([matrix.counts for matrix in data.matrices], axis=0).ravel().tolist(),
        "num_attributes": dataset.num_attributes,
        "rounds": config.federation.rounds,
        "facts": _facts(config, data, device),
        "model_config": plain(config)["model"] | {"num_classes": dataset.num_classes, "image_shape": _image_shape(dataset)},
    }
    return Federation(
        model=state.clone(federated_module(objective).state_dict()),
        num_clients=partition.num_clients,
        partition_digest=partition.digest,
        engine=engine,
        selector=selector,
        aggregator=make(config.aggregator),
        participation=make(config.participation),
        rounds=config.federation.rounds,
        cohort_size=config.federation.cohort_size,
        seed=config.seed,
        on_bad_update=config.federation.on_bad_update,
        callbacks={name: make(node, **facts) for name, node in {**config.callbacks, **config.logger}.items()},
    )


def pin_threads(config: DictConfig) -> None:
    """Set torch's threads and write their number into the config: sums over threads are part of the numbers of a run."""
    if config.threads is None:
        config.threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)


def load_data(config: DictConfig) -> FederatedData:
    """Load the data set and deal it; the last result is kept, so that the jobs of a sweep share one copy."""
    settings = plain(config)
    return _load_data(json.dumps({part: settings.get(part) for part in ("dataset", "partition", "smoke")}, sort_keys=True))


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
    return FederatedData(dataset, partition, val)


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


def _image_shape(dataset: Dataset) -> tuple[int, int, int]:
    channels, height, width = dataset.images.fetch(dataset.test[:1]).shape[1:]
    return int(channels), int(height), int(width)


def _facts(config: DictConfig, data: FederatedData, device: torch.device) -> dict[str, Any]:
    """Return what a summary should say about where a run's numbers come from."""
    on_gpu = device.type == "cuda"
    return {
        "seed": config.seed,
        "partition_digest": data.partition.digest,
        "engine": config.engine["_target_"].rpartition(".")[2],
        "threads": torch.get_num_threads(),
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
