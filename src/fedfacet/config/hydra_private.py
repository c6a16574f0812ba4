"""All that is taken from Hydra's private modules, for which it has no public names: its own options, its yamls by group."""

import contextlib
import copy
import functools
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn

from hydra import initialize_config_dir
from hydra._internal import defaults_list
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from fedfacet.config.nodes import flat_keys
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
        key = _stamp(self, config_path)
        if key not in self._read:
            self._read[key] = super().load_config(config_path)
        return copy.deepcopy(self._read[key])


def _stamp(yamls: ConfigRepository, config_path: str) -> tuple[object, ...]:
    """Return what stays the same as long as a yaml does: where it may lie, and when the files there were written."""
    folders = [source.path.removeprefix("file://") for source in yamls.sources]
    written: list[object] = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # not there, a name that is too long or none
            written.append(os.stat(os.path.join(folder, f"{config_path.removesuffix('.yaml')}.yaml")).st_mtime_ns)
    return config_path, *folders, *written


_defaults: Any = defaults_list
_all_choices = _defaults._create_interpolation_map


def _choices_to_interpolate(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
    """Return all choices as a config where a default refers to one; Hydra makes it for each yaml, a quarter of its time."""
    if any(default.is_interpolation() for default in defaults):
        return _all_choices(overrides, defaults, self_added)
    return None


_defaults._create_interpolation_map = _choices_to_interpolate


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


_KEYS: dict[tuple[object, ...], list[str]] = {}


def keys_of_group(name: str, group: str, searchpath: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of a group with the dotted paths in their yamls; to be called while ``initialized``.

    Args:
        name: of the primary config.
        group: its name.
        searchpath: overrides that say where else configs lie.
    """
    loader: Any = GlobalHydra.instance().config_loader()
    _, yamls = loader._parse_overrides_and_create_caching_repo(name, list(searchpath))
    options = {one: f"{group}/{one}" for one in yamls.get_group_options(group)}
    stamps = {one: _stamp(yamls.delegate, path) for one, path in options.items()}
    for one, path in options.items():
        if stamps[one] not in _KEYS:
            _KEYS[stamps[one]] = flat_keys(yamls.load_config(path).config)
    return {one: _KEYS[stamp] for one, stamp in stamps.items()}
