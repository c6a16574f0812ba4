"""The cells of a sweep: runs whose folders are named by what their numbers depend on."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import omegaconf
from omegaconf import DictConfig, OmegaConf

from fedfacet.config.compose import finalized
from fedfacet.config.nodes import plain, without_hydra
from fedfacet.config.resuming import FREE_ON_RESUME
from fedfacet.moved import FORMER

FREE_IN_A_CELL = frozenset(FREE_ON_RESUME) - {"federation.rounds"}
"""Keys that a cell's name leaves out: no number of a run depends on them, if it runs for as many rounds."""

_ADDED = ("server_data", "termination", "devices", "partition.held_out_clients", "adapter", "selector.candidates")
"""Groups and settings that are younger than the names of cells: a name is what it was where the option does nothing."""

_ADDED_TO_PARTS = ("noise_multiplier", "max_norm", "metrics")
"""Settings of questions and measurements, likewise; null does nothing."""


def cell_digest(settings: Mapping[str, Any]) -> str:
    """Return the name of a run's folder: 16 hexadecimal digits of what its numbers depend on.

    Two ways to ask for one run (``method=uniform`` and ``selector=uniform``) have one name, and so have runs that differ in
    what is free on resume: paths, loggers, the engine. What the machine decides where nobody does (``threads: null``) counts as
    left open. A version that adds, removes or renames a setting names cells anew.

    Args:
        settings: the resolved configuration as it will be used, JSON-able.

    Example:
        >>> one = {"seed": 1, "optimizer": {"lr": 1}, "paths": {"log_dir": "here"}, "federation": {"rounds": 2}}
        >>> cell_digest(one) == cell_digest(one | {"optimizer": {"lr": 1.0}, "paths": {"log_dir": "there"}})
        True
        >>> cell_digest(one) == cell_digest(one | {"federation": {"rounds": 3}})
        False
    """
    return hashlib.sha256(json.dumps(_counting(settings), sort_keys=True).encode()).hexdigest()[:16]


def is_cell(config: DictConfig) -> bool:
    """Tell whether a finalized configuration is one of a sweep's, to be run where nobody else runs it or has."""
    return config.choices.get("sweep") is not None


def _counting(value: Any, path: str = "") -> Any:
    """Return what counts of a configuration's values, each number in one spelling."""
    if isinstance(value, Mapping):
        full = {f"{path}.{key}" if path else str(key): entry for key, entry in value.items()}
        absent = {*FREE_IN_A_CELL, *(key for key in _ADDED if not full.get(key, True))}
        absent |= {key for key in full if full[key] is None and key.rpartition(".")[2] in _ADDED_TO_PARTS}
        return {key: _counting(entry, key) for key, entry in full.items() if key not in absent}
    if isinstance(value, list):
        return [_counting(entry, path) for entry in value]
    if isinstance(value, str):
        return FORMER.get(value, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest_of_root(*, _root_: DictConfig) -> str:
    """Name the cell whose whole composed configuration, Hydra's node included, an interpolation lies in."""
    own = _root_.hydra
    return cell_digest(plain(finalized(without_hydra(_root_), own.overrides.task, own.runtime.choices)))


# OmegaConf 2.3 has another function of the later name.
_register = getattr(OmegaConf, "register_new_resolver" if omegaconf.__version__.startswith("2.3.") else "register_resolver")
_register("cell_digest", _digest_of_root, replace=True)
