"""All that is taken from Hydra's private modules, for which it has no public names: its options, its yamls, its overrides.

Composing one job takes Hydra a tenth of a second, of which it spends half on reading the same yamls again, and a sweep of 147
cells has 49 choices of options. So each yaml is read once, each choice of options composed once, and plain values are set on
a copy, by the call with which Hydra sets them; ``tests/config/test_compose.py`` holds the outcome to Hydra's own.
"""

import contextlib
import copy
import functools
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedfacet.errors import ConfigError


def options_of(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Return Hydra's own options of a command line, and what is neither such an option nor an override.

    Raises:
        ConfigError: if an option lacks its value, or has one that there is not.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # its own prints a screen
    return parser.parse_known_intermixed_args(list(arguments))


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"Expected options that there are, but got this: {message}; see `--help`.")


@functools.lru_cache(maxsize=4096)
def parsed(override: str) -> Override:
    """Return an override as Hydra reads it.

    Raises:
        HydraException: if it is none.
    """
    try:
        return OverridesParser.create().parse_override(override)
    except RecursionError:
        raise HydraException(f"{override[:40]}... is nested too deeply") from None


class _Yamls(ConfigRepository):
    """The yamls as Hydra reads them, each once, and what was composed of them."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self.loaded: dict[tuple[str, ...], Any] = {}
        self.composed: dict[tuple[str, ...], DictConfig] = {}
        self.options: dict[tuple[str, ...], dict[str, DictConfig]] = {}

    def __deepcopy__(self, memo: object) -> "_Yamls":
        """Return what Hydra may give other sources, which it does to a copy for every job."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> Any:
        """Return a copy, as Hydra merges into what it loads."""
        key = (config_path, *(source.path for source in self.sources))
        if key not in self.loaded:
            self.loaded[key] = super().load_config(config_path)
        return copy.deepcopy(self.loaded[key])


@contextlib.contextmanager
def initialized(folder: str) -> Iterator[ConfigLoader]:
    """Have Hydra compose from a folder while entered; entered again, it goes on with what it has read."""
    if GlobalHydra.instance().is_initialized():
        loader = GlobalHydra.instance().config_loader()
        if isinstance(getattr(loader, "repository", None), _Yamls):
            yield loader
            return
    with initialize_config_dir(folder, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        loader.repository = _Yamls(loader.get_search_path())  # type: ignore[attr-defined]
        yield loader


def composed(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return ``compose(name, overrides, return_hydra_config=True)``, sooner where the same options were composed before.

    Args:
        name: of the primary config.
        overrides: of one job; to be given while ``initialized``.

    Raises:
        HydraException, OmegaConfBaseException, ValueError: as Hydra does.
    """
    yamls = GlobalHydra.instance().config_loader().repository  # type: ignore[attr-defined]
    read = [parsed(override) for override in overrides]
    values: list[Override] = []
    options: list[str] = []
    others: list[str] = []
    for one in read:
        if one.is_hydra_override():
            options.append(str(one.input_line))
        elif yamls.group_exists(one.key_or_group):
            (others if isinstance(one.value(), dict) else options).append(str(one.input_line))
        elif one.type is OverrideType.CHANGE and one.package is None and not one.is_sweep_override():
            values.append(one)
        else:
            others.append(str(one.input_line))
    if not values or others:  # in which order the others and the values are given may count
        return compose(name, list(overrides), return_hydra_config=True)
    if (key := (name, *options)) not in yamls.composed:
        yamls.composed[key] = compose(name, options, return_hydra_config=True)
    config: DictConfig = copy.deepcopy(yamls.composed[key])
    try:
        for one in values:
            OmegaConf.update(config, one.key_or_group, one.value(), merge=True)
    except OmegaConfBaseException:
        return compose(name, list(overrides), return_hydra_config=True)  # which says what is wrong
    tasks = [one for one in read if not one.is_hydra_override()]
    config.hydra.overrides.task = [one.input_line for one in tasks]
    config.hydra.job.override_dirname = get_overrides_dirname(tasks, **config.hydra.job.config.override_dirname)
    return config


def options_of_group(name: str, group: str, searchpath: Sequence[str]) -> dict[str, DictConfig]:
    """Return the options of a group with what their yamls hold; to be called while ``initialized``.

    Args:
        name: of the primary config.
        group: its name.
        searchpath: overrides that say where else configs lie.
    """
    loader: Any = GlobalHydra.instance().config_loader()
    options: dict[tuple[str, ...], dict[str, DictConfig]] = loader.repository.options
    if (key := (name, group, *searchpath)) not in options:
        _, yamls = loader._parse_overrides_and_create_caching_repo(name, list(searchpath))
        options[key] = {one: yamls.load_config(f"{group}/{one}").config for one in yamls.get_group_options(group)}
    return options[key]
