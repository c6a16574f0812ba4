"""All that is taken from Hydra's private modules, for which it has no public names: its own options, its yamls by group."""

import contextlib
import copy
import functools
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from hydra import initialize_config_dir
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

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
    """The yamls as Hydra reads them, each once as long as its file stays as it is; reading takes longer than composing does."""

    _read: ClassVar[dict[tuple[object, ...], Any]] = {}

    def __deepcopy__(self, memo: object) -> "_Yamls":
        """Return what Hydra may give other sources, which it does to a copy for every job."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> Any:
        """Return a copy, as Hydra merges into what it loads."""
        folders = [Path(source.path.removeprefix("file://")) for source in self.sources]
        # `Path.exists` raises an error when a name is too long.
        files = [folder / f"{config_path.removesuffix('.yaml')}.yaml" for folder in folders]
        key = (config_path, *folders, *(os.stat(file).st_mtime_ns for file in files if os.path.exists(file)))
        if key not in self._read:
            self._read[key] = super().load_config(config_path)
        return copy.deepcopy(self._read[key])


@contextlib.contextmanager
def initialized(folder: str) -> Iterator[None]:
    """Have Hydra compose from a folder while entered, unless it does so already."""
    if GlobalHydra.instance().is_initialized():
        sources = GlobalHydra.instance().config_loader().get_search_path().get_path()
        if folder in [source.path.removeprefix("file://") for source in sources if source.provider == "main"]:
            yield
            return
    with initialize_config_dir(folder, version_base="1.3"):
        loader: Any = GlobalHydra.instance().config_loader()
        loader.repository = _Yamls(loader.get_search_path())
        yield


def options_of_group(name: str, group: str, searchpath: Sequence[str]) -> dict[str, DictConfig]:
    """Return the options of a group with what their yamls hold; to be called while ``initialized``.

    Args:
        name: of the primary config.
        group: its name.
        searchpath: overrides that say where else configs lie.
    """
    loader: Any = GlobalHydra.instance().config_loader()
    _, yamls = loader._parse_overrides_and_create_caching_repo(name, list(searchpath))
    return {one: yamls.load_config(f"{group}/{one}").config for one in yamls.get_group_options(group)}
