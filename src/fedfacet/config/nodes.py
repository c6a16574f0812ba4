"""What can be read off a configuration as it is."""

from collections.abc import Iterator
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


def flat_keys(node: Any, path: str = "") -> list[str]:
    """Return the dotted paths of all nodes and values."""
    if not isinstance(node, DictConfig):
        return [path]
    flat = [path] if path else []
    key: Any
    for key in node:
        inner = f"{path}.{key}" if path else str(key)
        leaf = OmegaConf.is_interpolation(node, key) or OmegaConf.is_missing(node, key)
        flat += [inner] if leaf else flat_keys(node[key], inner)
    return flat
