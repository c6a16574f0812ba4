"""Holding a composed configuration to the signatures of what it names, and its settings to what they may be."""

import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedfacet.arguments import check_whole, check_within
from fedfacet.config.kinds import KINDS, find_target
from fedfacet.config.mistakes import SPECIAL_KEYS, unknown
from fedfacet.config.nodes import BESIDE_ARGUMENTS, plain, targets
from fedfacet.cores import MAX_THREADS
from fedfacet.errors import CheckpointError, ConfigError, first_line

LISTS = ("mechanisms", "transforms", "callbacks", "logger")
"""Groups of which several options may be chosen."""

_NEEDED = ("dataset", "partition", "model", "objective", "loss", "optimizer", "local", "selector", "aggregator", "engine")

_NOT_ALWAYS = (
    *("adapter", "capacity", "submodel", "privacy", "disclosure", "server_data", "termination", "devices", "deploy", "attack"),
    "mechanisms",
)
"""Groups that older runs do not have, or none has."""

MAX_WHOLE = 2**63 - 1
"""Larger whole numbers do not fit into the 64 bits that torch and numpy have for them."""

MAX_NUMBER = 3.4e38
"""Larger numbers overflow the 32 bits that torch computes with."""

_NAME = str | int | float  # a folder may be called 2024
_WORDS = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text", types.NoneType: "null"}

SETTINGS: dict[str, Any] = {
    "task": _NAME,
    "seed": int,
    "federation.rounds": int,
    "federation.step_budget": int | None,
    "federation.cohort_size": int,
    "federation.on_bad_update": Literal["raise", "drop"],
    "federation.pooled": bool,
    "threads": int | None,
    "memory_format": Literal["channels_last", "contiguous_format"] | None,
    "precision": Literal["32-true", "bf16-mixed"] | None,
    "fingerprint": Literal["sample", "whole"],
    "compile": bool | None,
    "deterministic": bool,
    "resume": _NAME | None,
    "trust": list[str] | str,
    "smoke": bool,
    "where_present": dict,
    "partition.held_out_clients": float | int | list[int],
    "partition.holdout_seed": int | None,
    "partition.keep_together": _NAME | None,
    "partition.local_holdout": float | list[float],
    "paths.data_dir": _NAME,
    "paths.log_dir": _NAME,
    "paths.output_dir": _NAME,
    "paths.sweep_dir": _NAME,
    "sweep.workers": Literal["auto"] | int,
    "wandb.project": str,
    "wandb.entity": str | None,
    "wandb.mode": Literal["online", "offline", "disabled"] | None,
    "wandb.tags": list[str],
    "run": _NAME | None,
    "round": int | None,
    "clients": list[int] | None,
    "delta": float,
    "card": str,
    "roster": str,
}
"""What the settings may be that belong to no class; those of a class are held to its signature."""


def check_arguments(path: str, node: Mapping[str, Any]) -> None:
    """Hold a node's keys to the signature of its target, and its plain values to the annotations.

    Args:
        path: of the node.
        node: resolved, if it is plain data.

    Raises:
        ConfigError: naming the key, what it may be, and the nearest valid names.
    """
    target = find_target(path, node["_target_"])
    try:
        parameters = _signature(target).parameters
    except (TypeError, ValueError):  # of C
        raise ConfigError(
            f"Expected `{path}._target_` to name a class or function whose arguments can be read, but got {node['_target_']}: "
            "wrap it in one of your own."
        ) from None
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    hints = {name: parameter.annotation for name, parameter in parameters.items()}
    for key, value in (plain(node) if isinstance(node, DictConfig) else node).items():
        if f"{path}.{key}" in SETTINGS:
            continue
        if key in SPECIAL_KEYS:
            if key == "_partial_" and not isinstance(value, bool):
                raise _misfit(f"{path}.{key}", bool, value)
            continue
        if key not in parameters:
            if takes_anything:
                continue
            raise ConfigError(unknown(f"{path}.{key}", [f"{path}.{name}" for name in parameters]))
        if not _fits(value, hints.get(str(key))):
            raise _misfit(f"{path}.{key}", hints[str(key)], value)


_signature = functools.lru_cache(maxsize=1024)(inspect.signature)


def check_left_out(config: DictConfig, key: str) -> None:
    """Refuse ``~key`` of a setting that is read as it is, and ``~part.key`` where the part cannot be made without it."""
    if key in SETTINGS.keys() - {f"partition.{name}" for name in BESIDE_ARGUMENTS} | {"engine.device"}:
        raise ConfigError(f"Expected `{key}` to be given, but it was left out: leave `~{key}` out.")
    path, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, path) if path else None
    if not isinstance(node, DictConfig) or "_target_" not in node or leaf in node:
        return
    parameter = inspect.signature(find_target(path, node["_target_"])).parameters.get(leaf)
    if leaf in SPECIAL_KEYS or (parameter is not None and parameter.default is parameter.empty):
        raise ConfigError(f"Expected `{key}` to be given, but it was left out: leave `~{key}` out, or choose another `{path}`.")


def check_parts(
    base: Mapping[str, Any], config: DictConfig, spelt: Mapping[str, Any], usual: Mapping[str, Any], path: str = ""
) -> None:
    """Refuse a part that is missing, and a plain value in place of a part's settings.

    Args:
        base: the configuration as it is spelt without overrides, or a part of it.
        config: the whole of one job's.
        spelt: the same, or that part of it, as plain data that is not resolved.
        usual: the groups' defaults.
        path: of the part.
    """
    for key, known in base.items():
        if not isinstance(known, dict):
            continue
        full = f"{path}.{key}" if path else key
        if key not in spelt and path:
            continue  # `~callbacks.progress`
        given = spelt.get(key, {})
        if isinstance(given, str) and "${" in given and isinstance(found := OmegaConf.select(config, full), DictConfig):
            given = OmegaConf.to_container(found, resolve=False)
        if not isinstance(given, dict):
            raise ConfigError(
                f"Expected settings under `{full}`, but got {given!r}: set one by `{full}.KEY=VALUE`, or leave all out "
                f"by `~{full}`."
            )
        if key not in spelt or ("_target_" in known and "_target_" not in given):
            remedy = (
                f"choose an option, for example `{full}={usual[full]}`" if full in usual else "it has settings that are needed"
            )
            raise ConfigError(f"Expected `{full}` to be given, but it was left out: {remedy}.")
        check_parts(known, config, given, usual, full)


def check_recipe(base: Mapping[str, Any], config: DictConfig) -> None:
    """Refuse what a yaml names that there is not, which Hydra adds without a word.

    Args:
        base: the configuration as it is spelt without overrides.
        config: one job's, finalised.
    """
    for group in ("federation", "sweep", "wandb"):
        known = [f"{group}.{key}" for key in base.get(group) or {}]
        if known and (strangers := [key for key in config.get(group) or {} if f"{group}.{key}" not in known]):
            raise ConfigError(unknown(f"{group}.{strangers[0]}", known))
    for group in LISTS:
        for name, part in (config.get(group) or {}).items():
            if not isinstance(part, DictConfig):
                raise ConfigError(
                    f"Expected parts by name in `{group}`, but `{group}.{name}` is {part!r}: write a name above each "
                    "`_target_`, as conf/transforms/clip.yaml does."
                )
            if "_target_" not in part:
                raise ConfigError(
                    f"Expected `{group}.{name}` to be there where it is given settings, but `{group}` is "
                    f"{config.choices.get(group)}: add {name} to the list."
                )


def check_settings(expected: set[str], settings: Mapping[str, Any]) -> None:
    """Hold the settings that belong to no class to ``SETTINGS``."""
    for key, hint in SETTINGS.items():
        value = _setting(settings, key)
        if key in expected and (not _fits(value, hint) or value == ""):
            raise _misfit(key, hint, value)
    threads = settings.get("threads")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"Expected `threads` between 1 and {MAX_THREADS}, or null, but got {threads}: fix the value.")
    if str((settings.get("engine") or {}).get("device")).startswith("meta"):
        raise ConfigError("Expected `engine.device` to name a device that computes, but got 'meta': give auto, cpu or cuda.")


def check_ranges(settings: Mapping[str, Any]) -> None:
    """Hold numbers of ``train.yaml``'s own to their ranges, in the words of the parts that they go to, before these load."""
    seed, shares = settings["seed"], settings["partition"].get("local_holdout", 0.0)
    held_out = settings["partition"].get("held_out_clients", 0)
    if seed < 0:
        raise ConfigError(f"Expected `seed` to be 0 or larger, but got {seed}.")
    try:
        check_whole("federation.rounds", settings["federation"]["rounds"])
        for share in [] if isinstance(shares, list) else [shares]:  # of a list the length comes first, which nobody knows here
            check_within("partition.local_holdout", share, "[0, 1)")
        for number in held_out if isinstance(held_out, list) else [held_out]:
            if isinstance(number, int):
                check_whole("partition.held_out_clients", number, 0)
            else:
                check_within("partition.held_out_clients", number, "[0, 1)")
        if (holdout_seed := settings["partition"].get("holdout_seed")) is not None:
            check_whole("partition.holdout_seed", holdout_seed, 0)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_saved(settings: Mapping[str, Any], file: object) -> None:
    """Hold a whole configuration that a run folder holds, which somebody may have changed, to the rules of a command line.

    Args:
        settings: plain data.
        file: that holds it, for the message.

    Raises:
        CheckpointError: naming what is missing or of another kind.
    """
    names = dict.fromkeys(key.partition(".")[0] for key in (*KINDS, "loss", "federation", "choices"))
    names = {name: None for name in names if name in settings or name not in _NOT_ALWAYS}
    inner = (f"{group}.{name}" for group in LISTS for name in settings.get(group) or {})  # once the groups have been looked at
    for name in itertools.chain(names, inner):
        node = _setting(settings, name)
        if not isinstance(node, Mapping) or ("_target_" not in node and (name in _NEEDED or "." in name)):
            raise CheckpointError(f"Expected {file} to hold the configuration of a run, but its `{name}` is missing or none.")
    needed = {"seed", "smoke", "deterministic", "federation.pooled", "federation.rounds", "federation.cohort_size"}
    try:
        check_settings(needed | {key for key in SETTINGS if _setting(settings, key) is not None}, settings)
        for path, node in targets(OmegaConf.create(dict(settings))):
            check_arguments(path, node)
    except (ConfigError, OmegaConfBaseException) as error:
        raise CheckpointError(f"{first_line(error)} It is in {file}.") from None


def _setting(settings: Mapping[str, Any], key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _misfit(key: str, hint: Any, value: Any) -> ConfigError:
    large = type(value) in (int, float) and (MAX_NUMBER if type(value) is float else MAX_WHOLE) < abs(value) < math.inf
    remedy = "give a smaller one" if large else "fix the value"
    return ConfigError(f"Expected `{key}` to be {_in_words(hint)}, but got {value!r}: {remedy}.")


def _in_words(hint: Any) -> str:
    """Say what an annotation asks for; the range that it may declare is the constructor's to check."""
    if typing.get_origin(hint) is Annotated:
        return _in_words(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if {float, int, str} & set(options):  # what a command line can give; a Tensor beside it is for callers in Python
            options = tuple(option for option in options if not inspect.isclass(option) or option in _WORDS)
        return " or ".join(dict.fromkeys(map(_in_words, options)))
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "settings"
    if inspect.isclass(origin) and issubclass(origin, Sequence) and origin is not str:
        return f"a list, each entry {_in_words(arguments[0])}" if arguments else "a list"
    return _WORDS.get(hint) or inspect.formatannotation(hint)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value from a yaml may be meant for an annotation."""
    origin = typing.get_origin(hint) or hint
    if origin is Annotated:
        return _fits(value, typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if not inspect.isclass(origin) or origin in (Any, object, inspect.Parameter.empty):
        return True
    if value is None or isinstance(value, bool | str):
        return origin is type(value)
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        return False
    if isinstance(value, int | float):
        return (isinstance(value, origin) or origin is float) and abs(value) <= MAX_NUMBER
    if isinstance(value, list):
        inner = [option for option in typing.get_args(hint) if option is not Ellipsis]
        listlike = issubclass(origin, Iterable) and not issubclass(origin, str | Mapping)
        return listlike and (len(inner) != 1 or all(_fits(entry, inner[0]) for entry in value))
    return not issubclass(origin, int | float | str | Sequence | types.NoneType)  # settings of a part, or a mapping
