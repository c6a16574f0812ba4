"""Composing one job, and making what its nodes name."""

import hashlib
import inspect
import os
import re
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedfacet.config.checks import (
    LISTS,
    check_arguments,
    check_left_out,
    check_parts,
    check_ranges,
    check_recipe,
    check_settings,
)
from fedfacet.config.composition import BASE, conf_dir, config_groups, initialized
from fedfacet.config.mistakes import check_added, check_where_present, composed_or_explained, unknown, usual, usual_keys
from fedfacet.config.nodes import BESIDE_ARGUMENTS, parsed, parts_within, plain, targets, value_of, without_hydra
from fedfacet.errors import ConfigError, FedFacetError, first_line
from fedfacet.moved import MOVED


def purposes() -> dict[str, str]:
    """Return what each group is for, as the yamls of the commands say beside their defaults, in the order of train.yaml."""
    known_purposes: dict[str, str] = {}
    for name in ("attack", "serve", "train"):  # the order is that of the last
        text = (conf_dir() / f"{name}.yaml").read_text(encoding="utf-8")
        own = dict(re.findall(r"^  - (\w+): \S+(?: # (.*))?$", text, re.MULTILINE))
        known_purposes = own | {group: purpose for group, purpose in known_purposes.items() if group not in own}
    return known_purposes


def compose_job(name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """Compose one job's configuration and check every key and every plain value.

    Returns:
        The configuration, finalised, and Hydra's own node of it.

    Raises:
        ConfigError: one sentence about the first override that is wrong, with the nearest valid names.
    """
    overrides = quoted_options(overrides)
    with initialized():
        whole = composed_or_explained(name, overrides)
        _check_keys(OmegaConf.to_container(whole.hydra, resolve=False), "hydra")
        return checked(name, without_hydra(whole), whole.hydra.runtime.choices, overrides), whole.hydra


def checked(name: str, own: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """Check every key and every plain value of a composed configuration, and finalise it; to be called while Hydra composes.

    Args:
        name: of the primary config.
        own: one job's configuration, without Hydra's own node; it is finalised in place.
        choices: group -> the option that was chosen.
        overrides: of the job.

    Raises:
        ConfigError: as ``compose_job``.
    """
    spelt: Any = OmegaConf.to_container(own, resolve=False)
    _check_keys(spelt)
    base, default_options = usual(name)
    _check_overrides(name, own, spelt, choices, overrides)
    try:
        finalize(own, overrides, choices)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"Expected values under `where_present` of their settings' kinds, but got: {str(error).splitlines()[0]}: fix them."
        ) from None
    try:
        spelt = OmegaConf.to_container(own, resolve=False)
        check_parts(base, own, spelt, default_options)
        check_recipe(base, own)
        settings = plain(own)
    except OmegaConfBaseException as error:
        key = f"`{error.full_key}` to have a value" if getattr(error, "full_key", None) else "every value to be given"
        raise ConfigError(f"Expected {key}, but got: {first_line(error)}: give the value itself.") from None
    check_settings(set(usual_keys(name)), settings)
    if (budget := OmegaConf.select(own, "federation.step_budget")) is not None and own.federation.rounds < 1:
        raise ConfigError(
            f"Expected `federation.step_budget` to suffice for one round of `local.amount` = {own.local.amount}, but got "
            f"{budget}: raise it, or give `federation.rounds`."
        )
    if "federation" in settings:  # of a run
        check_ranges(settings)
    import fedfacet.libraries  # noqa: F401  # late, so that what was refused so far is refused at once

    for path, node in parts_within(spelt, settings):
        check_arguments(path, node)
    for override in overrides:
        if override.startswith("~"):
            check_left_out(own, override.lstrip("~").partition("=")[0])
    return own


def _check_overrides(
    name: str, own: DictConfig, spelt: Mapping[str, Any], choices: Mapping[str, Any], overrides: Sequence[str]
) -> None:
    """Refuse several options of a group that takes one, and keys that there are not; ``own`` is not final yet."""
    base, default_options = usual(name)
    for group in set(default_options) - set(choices) - set(LISTS):
        if (given := value_of(group, overrides)) is not None:
            raise ConfigError(f"Expected one option for `{group}`, but got {given}: give `{group}={default_options[group]}`.")
    for override in overrides:
        if override.startswith("+"):
            check_added(name, own, choices, override)
    check_where_present(name, own, spelt, overrides)
    if strangers := [key for key in spelt if key not in base and key not in choices]:
        raise ConfigError(unknown(strangers[0], usual_keys(name)))


def _check_keys(node: Any, path: str = "") -> None:
    """Refuse mappings whose keys are no texts, which no setting is addressed by."""
    for key, value in node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(node, Mapping) and not isinstance(key, str):
            raise ConfigError(
                f"Expected names as keys under `{path}`, but got {key!r}: give a name, such as `{{name: value}}`."
            )
        _check_keys(value, f"{path}.{key}" if path else str(key))


def choice_of(override: str) -> tuple[str, Any] | None:
    """Return the group and the options that an override chooses or takes away; ``None`` where it sets something."""
    key, value = override.lstrip("+~").partition("=")[0], parsed(override).value()
    return None if key not in config_groups() or isinstance(value, Mapping) else (key, value)


def quoted_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line's arguments with every option named ``true`` in quotes, which Hydra would take for a bool."""
    groups = config_groups()
    quoted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.lstrip("+") in groups:
            value = re.sub(r"(?<![\w'\"./-])(true|false)(?![\w'\"./-])", r"'\1'", value)
        quoted.append(f"{key}{equals}{value}")
    return quoted


def finalized(config: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> DictConfig:
    """Return a copy of the config as it will be used and saved; see ``finalize``."""
    config = config.copy()
    finalize(config, overrides, choices)
    return config


def finalize(config: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> None:
    """Make the config what will be used and saved.

    The settings under ``where_present`` (of ``experiment=``, ``sweep=``, ``fidelity=`` and ``debug=``) are applied where the
    chosen options have the key and the command line does not set it; ``partition.label@natural`` is ``partition.label`` where
    the partition is ``natural``. The names of the chosen options are noted under ``choices``. Where there is a
    ``federation.step_budget``, the rounds follow from it. A part named by a former name has the name of today.
    """
    given = {key for override in overrides for key in _keys_set(override)}
    with open_dict(config):
        for setting, value in dict(config.get("where_present") or {}).items():
            key, _, option = str(setting).partition("@")
            parent, _, leaf = key.rpartition(".")
            if option and option != choices.get(key.partition(".")[0]):
                continue
            if key not in given and leaf in (OmegaConf.select(config, parent) or {}):
                OmegaConf.update(config, key, value)
        config.where_present = {}
        for group in LISTS:
            if "federation" in config and group not in config:  # `logger=[]`: none of them is a choice too
                config[group] = {}
        config.choices = {str(name): choice for name, choice in choices.items() if not str(name).startswith("hydra")}
        if config.get("smoke"):
            _shrink(config, given)
        elif "federation.rounds" not in given:
            _spend(config)
        spelt: Any = OmegaConf.to_container(config, resolve=False)
        for path, node in parts_within(spelt, spelt):
            if (now := MOVED.get(str(node["_target_"]))) is not None:
                OmegaConf.update(config, f"{path}._target_", now)


def make(node: DictConfig, **facts: Any) -> Any:
    """Instantiate a node with those of the facts that its target's signature asks for; without a target it is ``None``.

    The parts under ``metrics``, which are of another library, get the facts that they need.
    """
    if "_target_" not in node:  # an option that does nothing: `correction=none`, `participation=always`
        return None
    settings = {key: value for key, value in plain(node).items() if key not in BESIDE_ARGUMENTS}
    accepted = inspect.signature(get_object(node["_target_"])).parameters
    for metric in [one for one in (settings.get("metrics") or {}).values() if isinstance(one, dict) and "_target_" in one]:
        for name, parameter in inspect.signature(get_object(metric["_target_"])).parameters.items():
            if name in facts and parameter.default in (None, parameter.empty):  # the number of classes, say
                metric.setdefault(name, facts[name])
    # As a partial first, so that Hydra does not look into the facts (some hold configs) nor rewrite what a constructor says.
    try:
        factory = instantiate(settings, _convert_="all", _partial_=True, **_allowed(node))
    except InstantiationException as error:  # of a part within the part, which may have refused its arguments
        if isinstance(error.__cause__, ValueError | TypeError | FedFacetError):
            raise error.__cause__ from None
        raise
    if node.get("_partial_", False):
        return factory
    return factory(**{name: fact for name, fact in facts.items() if name in accepted})


def _allowed(node: DictConfig) -> dict[str, Any]:
    """Return what has Hydra call what a node names: since Hydra 1.4 it wants to be told; ``find_target`` has looked at it."""
    return {} if BASE else {"_execution_whitelist_": [named["_target_"] for _, named in targets(node)]}


def drives(config: DictConfig) -> bool:
    """Tell whether this process writes the run's folder: every process does, except the ranks above 0 of a distributed run."""
    return not {"RANK", "SLURM_PROCID"} & os.environ.keys() or make(config.engine).rank == 0


def _keys_set(override: str) -> list[str]:
    """Return the dotted keys that an override gives a value: several where it is a mapping, ``key={a: 1, b: 2}``."""
    key, _, value = override.lstrip("+~").partition("=")
    if not value.startswith("{"):
        return [key]
    left, keys = {key: parsed(override).value()}, []
    while left:
        path, inner = left.popitem()
        keys.append(path)
        left |= {f"{path}.{name}": entry for name, entry in inner.items()} if isinstance(inner, dict) else {}
    return keys


def _spend(config: DictConfig) -> None:
    """Set the rounds to what a constant budget of local work leaves: J0 R0 / J, rounded down."""
    budget, amount = OmegaConf.select(config, "federation.step_budget"), OmegaConf.select(config, "local.amount")
    if isinstance(budget, int) and isinstance(amount, int) and amount > 0:
        config.federation.rounds = budget // amount


def _shrink(config: DictConfig, given: Set[str]) -> None:
    """Make a run small: every kind of client once, a cohort of at most 3, and generated files where a data set reads some."""
    if isinstance(groups := config.partition.get("clients"), ListConfig):
        for group in groups:
            if isinstance(group, DictConfig):  # anything else is refused later
                group.count = 1
    if "classes_per_client" in config.partition and "partition.num_clients" not in given:
        config.partition.num_clients = None  # so few clients might not hold every class
    if (held_out := config.partition.get("held_out_clients")) and not isinstance(held_out, float):
        config.partition.held_out_clients = 1
    if isinstance(size := OmegaConf.select(config, "federation.cohort_size"), int):
        config.federation.cohort_size = min(3, size)
    if "root" in config.dataset:
        wanted = hashlib.sha256(
            f"{OmegaConf.to_container(config.dataset)}{OmegaConf.to_container(config.partition)}".encode()
        ).hexdigest()[:12]
        user = os.getuid() if hasattr(os, "getuid") else 0  # on a machine of several people each has a folder
        config.dataset.root = str(Path(tempfile.gettempdir()) / f"fedfacet-smoke-{user}" / wanted)
