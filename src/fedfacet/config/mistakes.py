"""Saying in one sentence what is wrong with an override, and what is nearest to it."""

import difflib
import functools
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedfacet.config.composition import composed, initialized, keys_of_group
from fedfacet.config.nodes import flat_keys, parsed, without_hydra
from fedfacet.errors import ConfigError, first_line

SPECIAL_KEYS = {"_target_", "_partial_", "_convert_", "_recursive_", "_args_"}

_BY_A_COLUMN = "for a client per value of a column of the data, give `partition=natural partition.label=COLUMN`."
_NO_OPTUNA = "run `pip install --no-deps hydra-optuna-sweeper`, or search with `python src/tune.py` (docs/guide.md)."
_OTHER_NAMES = {
    **{("partition", name): _BY_A_COLUMN for name in ("by_column", "column", "client_column", "label")},
    ("hydra/sweeper", "optuna"): _NO_OPTUNA,
}
"""(group, what somebody may call an option) -> what it is called here, or what has it."""

_MANY = 20  # options, behind which nobody would find the hint
_MOST_HAVING = 6

COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError, TypeError, RecursionError)


@functools.cache
def usual(name: str, *searchpath: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config as it is spelt without overrides, and the options it chooses; to be called while Hydra is initialized.

    Args:
        name: of the primary config.
        searchpath: overrides that say where else configs lie.
    """
    whole = composed(name, searchpath)
    spelt: Any = OmegaConf.to_container(whole, resolve=False)
    del spelt["hydra"]
    return spelt, dict(whole.hydra.runtime.choices)


@functools.cache
def usual_keys(name: str) -> list[str]:
    """Return the dotted paths of a config without overrides."""
    return flat_keys(usual(name)[0])


def composed_or_explained(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return what ``composed`` returns.

    Raises:
        ConfigError: one sentence about the first override that does not compose by itself, with the nearest valid names.
    """
    try:
        _check_searchpath(overrides)
        return composed(name, overrides)
    except COMPOSE_ERRORS as error:
        raise ConfigError(_explain(name, overrides, error)) from None


def _check_searchpath(overrides: Sequence[str]) -> None:
    """Refuse folders of configs in a form that Hydra does not take."""
    for folders in (parsed(override).value() for override in overrides if override.startswith("hydra.searchpath=")):
        if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
            raise ConfigError(
                f"Expected a list of folders, \"hydra.searchpath=['file:///FOLDER']\", but got hydra.searchpath={folders}."
            )


def _explain(name: str, overrides: Sequence[str], error: Exception) -> str:
    """Say in one sentence what is wrong with the first override that does not compose by itself."""
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath=")]
    overrides = [override for override in overrides if override not in searchpath]
    groups = _groups(name)
    chosen = [override for override in overrides if override.split("=")[0].lstrip("+~") in groups]
    for override in sorted(overrides, key=lambda one: one not in chosen):  # what is valid depends on the options chosen
        others = [*searchpath, *(other for other in chosen if other != override)]
        for context in (searchpath, others) if override in chosen else (others,):
            try:
                composed(name, [*context, override])
            except COMPOSE_ERRORS as fault:
                error = fault
                continue
            break
        else:
            return _explain_override(name, override, others, error)
    return f"Expected overrides that go together, but got {' '.join(overrides)}: {first_line(error)}"


def _groups(name: str) -> set[str]:
    """Return the groups of a config; one of which several options are the default is not among Hydra's choices."""
    config, choices = usual(name)
    return set(map(str, choices)) | set(map(str, config)) & set(GlobalHydra.instance().config_loader().list_groups(""))


def _explain_override(name: str, override: str, others: Sequence[str], error: Exception) -> str:
    groups = _groups(name)
    key, _, value = override.lstrip("+~").partition("=")
    try:
        read = parsed(override)
    except (HydraException, ValueError):
        return _explain_unreadable(key, value, override)
    if read.is_sweep_override():
        return f"Expected one value for `{key}`, but got `{value}`: add `-m` for a run per value, or choose one."
    if key in groups:
        return _explain_option(name, key, value, override, others, error)
    whole = composed(name, others)
    valid = flat_keys(whole if key.startswith("hydra.") else without_hydra(whole))
    if key in valid:
        return f"Expected a value that suits `{key}`, but got `{value}`: {first_line(error)}"
    group, _, rest = key.partition(".")
    searchpath = [other for other in others if other.startswith("hydra.searchpath=")]
    having = (
        [option for option, keys in keys_of_group(name, group, searchpath).items() if rest in keys] if group in groups else []
    )
    if having:
        beside = "[default,{}]" if group == "callbacks" else "{}"  # which are several
        listed = ", ".join(f"{group}={beside.format(option)}" for option in having[:_MOST_HAVING])
        more = f" or others ({len(having)} in all)" if len(having) > _MOST_HAVING else ""
        return (
            f"Expected an option that has `{key}`, but the one that is chosen has not: choose {listed}{more}, or leave it out."
        )
    return unknown(key, [*valid, *groups])


def _explain_unreadable(key: str, value: str, override: str) -> str:
    if "=" in value and not {"'", "\\"} & set(value):
        return (
            f"Expected an override of the form key=value, but got `{override}`, whose value has a `=` in it: put it in "
            f"quotes that the shell keeps, \"{key}='{value}'\"."
        )
    return (
        f"Expected an override of the form key=value, but got `{override}`: see `--help`; a value with special characters "
        f"needs quotes that the shell keeps, as in \"{key or 'key'}='a, b'\"."
    )


def _explain_option(name: str, key: str, value: str, override: str, others: Sequence[str], error: Exception) -> str:
    searchpath = [other for other in others if other.startswith("hydra.searchpath=")]
    options = GlobalHydra.instance().config_loader().get_group_options(key, config_name=name, overrides=searchpath)
    chosen = [option.strip(" '") for option in value.strip("[]").split(",")]
    wrong = [option for option in chosen if option not in options]
    if value == "null":
        hint = f"for none of them, give `~{key}`."
    elif not wrong:
        hint = f"it is there already, so give `{key}={value}` without a prefix." if override[0] in "+~" else first_line(error)
    elif (key, wrong[0]) in _OTHER_NAMES:
        hint = _OTHER_NAMES[key, wrong[0]]
    elif nearest := difflib.get_close_matches(wrong[0], options, 1):
        hint = f"did you mean `{key}={nearest[0]}`?"
    elif any(other.startswith("hydra.searchpath=") for other in others):
        hint = "choose one of these."
    else:
        hint = "choose one of these, or say with hydra.searchpath=[file://DIR] where an option of your own lies."
    if len(options) > _MANY:
        return f"Expected a known option of `{key}`, but got `{value}`: {hint} There are {', '.join(options)}."
    return f"Expected `{key}` to be one of {', '.join(options)}, but got `{value}`: {hint}"


def unknown(key: str, valid: Sequence[str]) -> str:
    """Name the nearest valid keys: those that are spelt alike in full and in their last part, or have the same last part."""
    leaf = key.rpartition(".")[2]
    valid = [name for name in dict.fromkeys(valid) if name.rpartition(".")[2] not in SPECIAL_KEYS]
    # A common beginning alone, such as `federation.`, makes no two keys alike.
    alike = [name for name in valid if difflib.get_close_matches(leaf, [name.rpartition(".")[2]])]
    nearest = difflib.get_close_matches(key, alike, 3)
    nearest += [name for name in valid if name.rpartition(".")[2] == leaf and name not in nearest]
    introduction = "the nearest are"
    if not nearest and (parent := key.rpartition(".")[0]):
        nearest, introduction = [name for name in valid if name.startswith(f"{parent}.")], f"`{parent}` has"
    if not nearest:
        return f"Expected a known option, but got `{key}`: `--cfg job` prints all of them, `--help` the groups."
    return f"Expected a known option, but got `{key}`: {introduction} {', '.join(f'`{name}`' for name in nearest[:8])}."


def check_added(name: str, config: DictConfig, choices: Mapping[str, Any], override: str) -> None:
    """Refuse ``+key=value`` unless the key is an argument of the class that its node names (Hydra would take anything)."""
    key = override.lstrip("+").split("=", 1)[0].split("@")[0]
    if key.startswith("hydra.") or key in choices:
        return
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        node = OmegaConf.select(config, ".".join(parts[:length]))
        if isinstance(node, DictConfig) and "_target_" in node:
            return  # check_arguments holds it to the signature
    if key not in (known := usual_keys(name)):
        raise ConfigError(unknown(key, known))


def check_where_present(name: str, composed: DictConfig, spelt: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a key that no option has, and an option after ``@`` that there is not; either would be ignored in silence.

    Args:
        name: of the primary config.
        composed: one job's, before ``where_present`` is applied.
        spelt: the same as plain data, not resolved.
        overrides: of the job, which may say where else configs lie.

    Raises:
        ConfigError: with the nearest names.
    """
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath=")]
    settings = composed.get("where_present")
    if settings is not None and not isinstance(settings, DictConfig):
        raise ConfigError(
            f"Expected `where_present` to be settings, but got {settings!r}: give them as KEY: VALUE in a recipe."
        )
    present = {*flat_keys(spelt), *usual_keys(name)}
    of_group: dict[str, dict[str, list[str]]] = {}
    for setting in map(str, settings or {}):
        key, _, option = setting.partition("@")
        if key in present and not option:
            continue
        group = key.partition(".")[0]
        if group not in of_group:
            of_group[group] = keys_of_group(name, group, searchpath)
        options = of_group[group]
        if option and option not in options:
            raise ConfigError(unknown(setting, [f"{key}@{one}" for one in options]))
        known = [f"{group}.{inner}" for keys in options.values() for inner in keys]
        if key not in known and key not in present:
            raise ConfigError(unknown(key, [*known, *usual_keys(name)]))


log = logging.getLogger(__name__)

TAKEN_BY_THE_OBJECTIVE = ("model", "loss", "correction", "optimizer")
"""Groups that come to use as arguments of the objective's constructor; ``build.py`` hands them out."""


def check_used(name: str, config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse what the objective does not take although the command line or a method asks for it.

    What a recipe brings along, or what a comparison of selectors gives to all of them, is only said, in one line each.

    Args:
        name: of the primary config.
        config: one job's, composed and finalised.
        overrides: of that job.

    Raises:
        ConfigError: naming the group and the objective.
    """
    given = {override.lstrip("+~").split("=")[0].split(".")[0]: override.replace("'", "") for override in overrides}
    with initialized():
        default_options = usual(name)[1]
    asks, taken = "heterogeneity" in _arguments(config.selector), _arguments(config.objective)
    for group in (group for group in TAKEN_BY_THE_OBJECTIVE if group not in taken):
        objective = f"objective={config.choices.objective} ({config.objective['_target_']})"
        chosen = f"{group}={config.choices[group]}"
        if group == "optimizer" and asks and config.choices.heterogeneity != "true":
            if group in given:  # the models of an estimate are trained with it
                _say(
                    f"{given[group]} is used by heterogeneity={config.choices.heterogeneity} only, not by local training: "
                    f"{objective} has no argument `{group}`."
                )
        elif group in given:
            raise _not_taken(group, given[group], objective, f"leave {given[group]} out")
        elif config.choices[group] != default_options[group]:
            if group == "correction":  # no recipe has one
                raise _not_taken(group, chosen, objective, f"choose another method than {config.choices.get('method')}")
            _say(f"The recipe's {chosen} changes nothing: {objective} has no argument `{group}`.")
    _check_patience(config)
    _check_held_out_clients(config)
    if "heterogeneity" in given and not asks:
        _say(f"{given['heterogeneity']} changes nothing: selector={config.choices.selector} does not ask for heterogeneity.")


def _check_patience(config: DictConfig) -> None:
    """Say where a run measures too seldom for a scheduler that waits for ``patience`` measurements after the first."""
    scheduler, evaluate = OmegaConf.select(config, "scheduler"), OmegaConf.select(config, "callbacks.evaluate")
    if scheduler is None or "patience" not in scheduler or evaluate is None or not str(scheduler.metric).startswith("val/"):
        return
    measured = math.ceil(config.federation.rounds / evaluate.every_n_rounds)
    if measured < scheduler.patience + 3:  # the first, so many without getting better, one more, and a round then
        _say(
            f"scheduler={config.choices.scheduler} changes nothing: {scheduler.metric} is measured {measured} times, too "
            f"seldom for scheduler.patience={scheduler.patience}; lower that, or callbacks.evaluate.every_n_rounds."
        )


def _check_held_out_clients(config: DictConfig) -> None:
    """Say where there are clients that never take part and nobody measures them."""
    parts = [get_object(node["_target_"]) for node in (config.get("callbacks") or {}).values()]
    if config.partition.get("held_out_clients") and not any(
        getattr(part, "measures_held_out_clients", False) for part in parts
    ):
        _say(
            "The clients of partition.held_out_clients are measured by no callback of this run: add "
            "callbacks=[default,client_fairness] partition.local_holdout=0.2, or personal_evaluate beside it."
        )


def _arguments(node: DictConfig) -> Sequence[str]:
    return list(inspect.signature(get_object(node["_target_"])).parameters)


def _not_taken(group: str, asked: str, objective: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"Expected an objective that takes `{group}` where {asked} is asked for, but {objective} has no such argument: "
        f"{remedy}, or give its constructor an argument `{group}`."
    )


@functools.cache
def _say(sentence: str) -> None:
    """Warn once, however many jobs it is true of."""
    log.warning(sentence)
