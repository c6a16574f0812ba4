"""The yaml files of a run folder, which may come from somebody else."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from fedfacet.moved import with_current_names
from fedfacet.storage.run_files import read

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
