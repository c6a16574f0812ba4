"""Holding ``where_present`` to keys that there are: in the configuration, or in some option of the key's group."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from fedfacet.config.composition import keys_of_group
from fedfacet.config.mistakes import unknown, usual_keys
from fedfacet.config.nodes import flat_keys
from fedfacet.errors import ConfigError


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
