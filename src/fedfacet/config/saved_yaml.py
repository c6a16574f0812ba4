"""The yaml files of a run folder, which may come from somebody else."""

from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf


def load_yaml(file: Path) -> DictConfig | ListConfig:
    """Return what a yaml file holds that OmegaConf has written.

    Raises:
        ValueError: if an entry stands for another one (``*name``). OmegaConf writes none, and ten lines of them can unpack
            to more than a memory holds.
        Exception: of several libraries, if the file is no yaml.
    """
    text = file.read_text(encoding="utf-8")
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if any(isinstance(event, yaml.AliasEvent) for event in events):
        raise ValueError("an entry stands for another one")
    return OmegaConf.create(text)
