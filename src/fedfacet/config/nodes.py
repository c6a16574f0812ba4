"""What can be read off a configuration as it is."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

BESIDE_ARGUMENTS = frozenset({"held_out_clients", "holdout_seed", "keep_together", "local_holdout"})
"""Keys of a part's node that are no arguments of its target: whoever makes the part reads them."""


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the resolved configuration as plain data."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def without_hydra(config: DictConfig) -> DictConfig:
    """Return the configuration without Hydra's own node."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def targets(config: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    """Yield every node that names a class or function, with its dotted path."""
    if isinstance(config, DictConfig):
        if "_target_" in config:
            yield path, config
        key: Any  # a text, unless somebody has written the file
        for key in config:
            if not OmegaConf.is_interpolation(config, key) and config[key] is not None:
                yield from targets(config[key], f"{path}.{key}" if path else key)


def parts_within(
    spelt: Mapping[str, Any], settings: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what ``targets`` yields, of plain data: ``spelt``, and the same resolved, of which the nodes are."""
    if "_target_" in spelt:
        yield path, settings
    for key, value in spelt.items():
        if isinstance(value, dict):
            yield from parts_within(value, settings[key], f"{path}.{key}" if path else key)


def flat_keys(node: Any, path: str = "") -> list[str]:
    """Return the dotted paths of all nodes and values, of a configuration or of plain data."""
    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=False)
    if not isinstance(node, dict):
        return [path]
    flat = [path] if path else []
    for key, value in node.items():
        flat += flat_keys(value, f"{path}.{key}" if path else str(key))
    return flat
