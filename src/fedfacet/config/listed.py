"""What a run folder may set, which somebody else may have made: what is not listed must be given on the command line.

Numbers, switches and null pass in the groups below, and texts where they are a word that a part of ours compares with words of
its own, the name of a column, layer or metric, or a place that a data set is read from and never written to. Nothing else does:
hosts, accounts, what fetches or uploads, other places on the disk, arguments of other packages, and more processes than cores.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import get_object

from fedfacet.cores import num_cores

_WORDS = {
    "task": "task",
    "seed": "",
    "federation": "on_bad_update",
    "threads": "",
    "memory_format": "memory_format",
    "precision": "precision",
    "compile": "",
    "deterministic": "",
    "fingerprint": "fingerprint",
    "smoke": "",
    "card": "card",
    "roster": "roster",
    "sites": "",
    "paths": "data_dir log_dir sweep_dir",
    "dataset": "root folder file labels tokenizer attribute attributes classes columns drop features folders input missing "
    "sensitive_features separator split states target words",
    "partition": "label keep_together",
    "model": "architecture attention name norm weights",
    "adapter": "base_dtype modules_to_save target_modules trained",
    "objective": "",
    "loss": "penalty rate",
    "correction": "",
    "personal": "",
    "optimizer": "",
    "scheduler": "anneal metric mode",
    "capacity": "assignment",
    "submodel": "dynamics grouping membership policy",
    "local": "sampling unit",
    "privacy": "accountant cover",
    "disclosure": "allows attributes",
    "server_data": "",
    "heterogeneity": "multiclass pivot",
    "selector": "fairness jensen_shannon never_selected normalisation orthogonal pretraining rotation scheme scoring space "
    "starvation_pool variant within",
    "aggregator": "buffers groups length_correction measure over rate scope second_moment tau_eff variant weighting",
    "participation": "mode",
    "devices": "on_late uplink",
    "termination": "metric",
    "mechanisms": "",
    "transforms": "compensation how",
    "engine": "backend device sums",
    "callbacks": "classes keep method odds others positive_class",
}
"""Group or setting -> the arguments in it that may be texts."""

_LOGGERS = {"csv", "tensorboard", "lightning"}
"""Those that write only to the run folder, if nothing else is set."""

_REACH_OUT = ("fedfacet.callbacks.wandb_log", "fedfacet.deploy.")
"""Modules of ours whose classes talk to others, or start what does, by themselves."""

_ABSENT = object()


def may_choose(group: str, options: Any) -> bool:
    """Tell whether a folder may choose an option of a group, or several."""
    if options is None:
        return True
    if group == "logger":
        return set(options if isinstance(options, list) else [options]) <= _LOGGERS
    return group not in ("deploy", "hydra", "paths")


def may_set(path: Sequence[str], value: Any) -> bool:
    """Tell whether a folder may give a setting a value.

    Args:
        path: the keys that lead to it, the group first.
        value: plain data; ``None`` where it takes the setting away.
    """
    if isinstance(value, Mapping):
        return all(may_set((*path, str(key)), entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(may_set(path, entry) for entry in value)
    group, name = path[0], path[-1]
    if group not in _WORDS or "arguments" in path or (name.startswith("_") and name not in ("_partial_", "_target_")):
        return False
    if name == "download":
        return value in (None, False)
    if (group, name) == ("engine", "workers"):
        return value in (None, "auto") or (isinstance(value, int) and value <= num_cores())
    if not isinstance(value, str):
        return True
    if name == "_target_":  # of which check_trusted says more
        return not _reaches_out(value)
    if group == "model":  # whose names may lead to a hub
        return value == "none" if name == "weights" else name in _WORDS[group].split() and bool(re.fullmatch(r"[\w.]+", value))
    return name in _WORDS[group].split()


def differences(
    settings: Mapping[str, Any], usual: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each path at which resolved settings are not the usual ones, with the value; ``None`` where they lack it.

    A part that is left out does nothing; an argument that is left out may have another default.
    """
    for key in {**usual, **settings}:
        here = (*path, str(key))
        value, own = settings.get(key, _ABSENT), usual.get(key, _ABSENT)
        if isinstance(value, Mapping) and (isinstance(own, Mapping) or own is _ABSENT):
            yield from differences(value, own if isinstance(own, Mapping) else {}, here)
        elif value is _ABSENT and isinstance(own, Mapping):
            if "_target_" not in own:
                yield from differences({}, own, here)
        elif value != own or type(value) is not type(own):
            yield here, None if value is _ABSENT else value


def _reaches_out(name: str) -> bool:
    try:
        return str(get_object(name).__module__).startswith(_REACH_OUT)
    except Exception:  # whatever is wrong with it is said when it is used
        return name.startswith(_REACH_OUT)
