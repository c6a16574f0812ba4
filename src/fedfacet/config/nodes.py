"""What can be read off a configuration, an override and the yaml files of a run folder, which may come from somebody else."""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

from fedfacet.moved import with_current_names
from fedfacet.storage.run_files import read

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


@functools.lru_cache(maxsize=4096)
def parsed(override: str) -> Override:
    """Return an override as Hydra reads it; not to be changed.

    Raises:
        HydraException: if it is none.
    """
    try:
        return OverridesParser.create().parse_override(override)
    except RecursionError:
        raise HydraException(f"{override[:40]}... is nested too deeply") from None


def override_of(key: str, value: object) -> str:
    """Return the override from which Hydra reads a value as it is, quoted only where it must be."""
    text = str(value)
    try:
        read = parsed(f"{key}={text}")
        if not read.is_sweep_override() and read.value() == text:
            return f"{key}={text}"
    except HydraException:
        pass
    escaped = text.replace("'", "\\'")
    return f"{key}='{escaped}'"


def value_of(key: str, overrides: Sequence[str]) -> str | None:
    """Return the value that a command line gives a key, without quotes; ``None`` where it gives none, or null."""
    given = [override for override in overrides if override.startswith(f"{key}=")]
    try:
        read = [parsed(override) for override in given]
    except HydraException:
        return None  # compose_job says what is wrong
    values = [override.value() for override in read if not override.is_sweep_override()]
    return str(values[-1]) if values and values[-1] not in (None, "") else None


MOST_BYTES_OF_YAML, _DEEPEST = 1 << 18, 50
"""A run's own files have some ten thousand bytes, and are nested five deep."""


def load_yaml(file: Path) -> DictConfig | ListConfig:
    """Return what a yaml file holds that OmegaConf has written.

    An entry that stands for another one (``*name``) is refused. OmegaConf writes none, and ten lines of them can unpack to more
    than a memory holds.

    Raises:
        CheckpointError: if the file is damaged, no yaml, or too large or too deep to be read in a moment.
    """
    return read(file, parsed_yaml, MOST_BYTES_OF_YAML)


def yaml_of(settings: Mapping[str, Any]) -> str:
    """Return settings as the text of a yaml file that ``load_yaml`` reads."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(settings)))


def parsed_yaml(content: bytes) -> DictConfig | ListConfig:
    """Return what such a file holds; see ``load_yaml``."""
    text, depth = content.decode(), 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an entry stands for another one")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested {depth} deep")
    return OmegaConf.create(with_current_names(text))


def sealed_list(overrides: Sequence[str]) -> str:
    """Return a list as yaml with its sha256 in a comment before it, to which ``load_sealed_list`` holds it."""
    text = OmegaConf.to_yaml(list(overrides))
    return f"{_seal(text.encode()).decode()}\n{text}"


def load_sealed_list(file: Path) -> list[str]:
    """Return the list of a yaml file; older runs have written it without a seal.

    Raises:
        CheckpointError: if the file is damaged, or holds something else.
    """

    def parse(content: bytes) -> list[str]:
        first, _, rest = content.partition(b"\n")
        if first.startswith(b"#") and first != _seal(rest):
            raise ValueError("it is damaged, as the sha256 in its first line shows")
        saved = OmegaConf.to_container(parsed_yaml(content), resolve=False)
        if not (isinstance(saved, list) and all(isinstance(one, str) for one in saved)):
            raise ValueError("it holds no list of overrides")
        return [str(one) for one in saved]

    return read(file, parse, MOST_BYTES_OF_YAML)


def _seal(content: bytes) -> bytes:
    return b"# sha256 " + hashlib.sha256(content).hexdigest().encode()
