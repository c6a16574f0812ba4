"""The yaml files of a run folder, which may come from somebody else."""

from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from fedfacet.storage.run_files import content_of

_MOST_BYTES, _DEEPEST = 1 << 18, 50
"""A run's own files have some ten thousand bytes, and are nested five deep."""


def load_yaml(file: Path) -> DictConfig | ListConfig:
    """Return what a yaml file holds that OmegaConf has written.

    Raises:
        ValueError: if an entry stands for another one (``*name``), which OmegaConf does not write, and ten lines of which can
            unpack to more than a memory holds; or if it is too large or too deep to be read in a moment.
        Exception: of several libraries, if the file is no yaml.
    """
    text, depth = content_of(file, _MOST_BYTES).decode(), 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an entry stands for another one")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested {depth} deep")
    return OmegaConf.create(text)
