"""A simulated federation written out as sites on one machine: a pilot to try a deployment on, and what its proof runs on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fedfacet.data.federated import FederatedData
from fedfacet.deploy.card import card_of
from fedfacet.errors import ConfigError
from fedfacet.types import Partition


def write_pilot(
    data: FederatedData,
    name: str,
    folder: Path,
    num_sites: int,
    holdout: float = 0.0,
    queries: Sequence[str] = ("NumSamples",),
) -> Sequence[Path]:
    """Write ``card.yaml``, ``roster.yaml`` and a folder for each site with its ``client.yaml`` and its clients' samples.

    Clients are dealt to sites in turn, and keep their numbers.

    Args:
        data: of the federation; what validates or tests is left out.
        holdout: the part of each client's samples that is held out there, as in simulation.
        name: of the data card.
        folder: that is new.
        num_sites: 1 or more, at most as many as there are clients.
        queries: names of those that clients answer.

    Returns:
        The files ``client.yaml``.

    Raises:
        ConfigError: if the folder exists, or if there are more sites than clients.
    """
    if folder.exists():
        raise ConfigError(f"Expected a new folder for the pilot, but {folder} is there: remove it, or name another one.")
    number = data.partition.num_clients
    if not 1 <= num_sites <= number:
        raise ConfigError(f"Expected between 1 and {number} sites, as there are {number} clients, but got {num_sites}.")
    dataset = data.dataset
    sites: dict[str, dict[str, Any]] = {f"site_{position}": {} for position in range(num_sites)}
    roster = []
    held_out = data.holdout_partition or Partition((np.empty(0, np.int64),) * number)
    for client_id, parts in enumerate(zip(data.partition.indices, held_out.indices, strict=True)):
        samples = np.sort(np.concatenate(parts))
        site, client = f"site_{client_id % num_sites}", f"client_{client_id:0{len(str(number - 1))}d}"
        file = folder / site / f"{client}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        x = dataset.inputs.fetch(samples).contiguous(memory_format=torch.contiguous_format).numpy()
        np.savez(file, x=x, y=dataset.y[samples], a=dataset.a[samples])
        sites[site][client] = {"file": file.name, "holdout": holdout} if holdout else file.name
        roster.append({"name": client, "site": site})
    _write(folder / "card.yaml", card_of(dataset, name).plain)
    _write(folder / "roster.yaml", {"clients": roster})
    for site, clients in sites.items():
        policy = {"queries": list(queries)}
        settings = {"site": site, "card": "../card.yaml", "clients": clients, "state": "state"}
        _write(folder / site / "client.yaml", {**settings, "device": "cpu", "keep_letters": True, "policy": policy})
    return [folder / site / "client.yaml" for site in sites]


def _write(file: Path, table: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(table, sort_keys=False, default_flow_style=None, width=120), encoding="utf-8")
