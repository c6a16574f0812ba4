"""Composing as Hydra does; what is chosen is composed once, and values are set on copies of it, as in the cells of a sweep."""

import contextlib
import functools
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from fedfacet.config.nodes import flat_keys, parsed

BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""Hydra 1.3 asks which version's ways it should have; later ones have their own."""


def conf_dir() -> Path:
    """Return the folder of the yamls: ``conf/`` of a checkout, or the copy inside an installed package."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def config_groups() -> set[str]:
    """Return the names of the groups that options are chosen of."""
    return {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}


@contextlib.contextmanager
def initialized() -> Iterator[None]:
    """Have Hydra compose from ``conf/`` while entered, unless it does so already."""
    folder = str(conf_dir())
    if GlobalHydra.instance().is_initialized() and folder == _folder(_loader()):
        yield
        return
    with initialize_config_dir(folder, **BASE):
        yield


def composed(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return what ``hydra.compose`` returns, Hydra's own node included; to be called while ``initialized``.

    Raises:
        HydraException, OmegaConfBaseException, ValueError, TypeError: as it does.
    """
    try:
        read = [parsed(override) for override in overrides]
        choosing = [str(one.input_line) for one in read if _chooses(one)]
        config: DictConfig = pickle.loads(_of_options(name, tuple(choosing), _stamps(conf_dir())))
        for one in read:
            if str(one.input_line) not in choosing:
                _apply(one, config)
        _note(read, config)
    except Exception:  # another search path, what is taken away, and mistakes, which Hydra explains
        return compose(name, list(overrides), return_hydra_config=True)
    return config


@functools.lru_cache(maxsize=256)
def _of_options(name: str, options: tuple[str, ...], stamps: object) -> bytes:
    return pickle.dumps(compose(name, list(options), return_hydra_config=True))


def _stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what says that the yamls of a folder are as they were."""
    found = (
        (entry, entry.stat()) for place in [folder, *os.scandir(folder)] if os.path.isdir(place) for entry in os.scandir(place)
    )
    return tuple((entry.path, told.st_mtime_ns, told.st_size) for entry, told in found)


def _chooses(one: Override) -> bool:
    """Tell whether an override chooses an option; else it sets a value."""
    key = one.key_or_group
    if one.is_sweep_override() or key == "hydra" or key.startswith("hydra.searchpath"):
        raise NotImplementedError
    chooses = one.package is not None or "/" in key or (key in config_groups() and not isinstance(one.value(), dict))
    if one.is_delete() and not chooses:
        raise NotImplementedError
    return chooses


def _apply(one: Override, config: DictConfig) -> None:
    """Set a value as Hydra does."""
    key, value = one.key_or_group, one.value()
    if one.is_add() and not isinstance(value, dict | list) and OmegaConf.select(config, key) is not None:
        raise NotImplementedError
    OmegaConf.update(config, key, value, force_add=one.type is not OverrideType.CHANGE)


def _note(read: Sequence[Override], config: DictConfig) -> None:
    """Note in Hydra's node which overrides there were."""
    task = [one for one in read if not one.is_hydra_override()]
    config.hydra.overrides.task = [one.input_line for one in task]
    config.hydra.overrides.hydra = [one.input_line for one in read if one.is_hydra_override()]
    config.hydra.runtime.cwd = os.getcwd()
    job = config.hydra.job
    if not OmegaConf.is_interpolation(job, "override_dirname"):  # as it is since Hydra 1.4
        spelt = job.config.override_dirname
        lines = sorted(str(one.input_line) for one in task if one.key_or_group not in spelt.exclude_keys)
        job.override_dirname = spelt.item_sep.join(lines).replace("=", spelt.kv_sep)


def keys_of_group(name: str, group: str, searchpath: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of a group with the dotted paths in their yamls; to be called while ``initialized``.

    Args:
        name: of the primary config.
        group: its name.
        searchpath: overrides that say where else configs lie.
    """
    loader, keys = _loader(), {}
    for option in loader.get_group_options(group, config_name=name, overrides=list(searchpath)):
        path = f"{group}/{option}"
        if (source := next((source for source in loader.get_sources() if source.is_config(path)), None)) is not None:
            keys[option] = flat_keys(source.load_config(path).config)
        else:  # of the search path
            with contextlib.suppress(Exception):
                keys[option] = flat_keys(compose(name, [*searchpath, f"{group}={option}"]).get(group))
    return keys


def _loader() -> ConfigLoader:
    return GlobalHydra.instance().config_loader()


def _folder(loader: ConfigLoader) -> str:
    """Return where the primary config lies."""
    paths = loader.get_search_path().get_path()
    return next((path.path.removeprefix("file://") for path in paths if path.provider == "main"), "")
