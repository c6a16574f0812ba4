"""Composing as Hydra does, in a fraction of its time: what is the same from job to job is read and merged once.

The result is what ``hydra.compose`` returns, and only public names of Hydra's lead to it. Other search paths, what is taken
away, and mistakes, which Hydra explains, are left to Hydra.
"""

import contextlib
import functools
import importlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from fedfacet.config.nodes import flat_keys, parsed

BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""Hydra 1.3 asks which version's ways it should have; later ones have their own."""

_MOST_KEPT = 256

_read: dict[tuple[object, ...], bytes] = {}
"""A yaml as it lies there -> what Hydra reads of it, pickled: a copy of that takes a third of the time of ``deepcopy``."""

_merged: dict[tuple[str, ...], tuple[dict[str, Any], bytes]] = {}
"""Folder, config and options -> the yamls that they came from, and what they are composed to, pickled."""

_of_hydra: dict[object, bytes] = {}
"""The yamls that have a say in Hydra's own node -> that node as Hydra has composed it, pickled."""


class _LeftToHydraError(Exception):
    """What only Hydra composes."""


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
        for source in _loader().get_sources():
            _read_once(type(source))
        yield


def composed(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return what ``hydra.compose`` returns, Hydra's own node included; to be called while ``initialized``.

    Raises:
        HydraException, OmegaConfBaseException, ValueError, TypeError: as it does.
    """
    loader = _loader()
    try:
        read = [parsed(override) for override in overrides]
        groups = _groups(folder := _folder(loader), os.stat(folder).st_mtime_ns)
        choosing = [_chooses(one, groups) for one in read]
        options = [str(one.input_line) for one, chooses in zip(read, choosing, strict=True) if chooses]
        config = _of_options(loader, name, options)
        for one, chooses in zip(read, choosing, strict=True):
            if not chooses:
                _apply(one, config)
        _note(read, config)
    except Exception:
        return compose(name, list(overrides), return_hydra_config=True)
    return config


def _loader() -> ConfigLoader:
    return GlobalHydra.instance().config_loader()


def _folder(loader: ConfigLoader) -> str:
    """Return where the primary config lies."""
    paths = loader.get_search_path().get_path()
    return next((path.path.removeprefix("file://") for path in paths if path.provider == "main"), "")


@functools.lru_cache(maxsize=8)
def _groups(folder: str, changed: int) -> Sequence[str]:
    return _loader().list_groups("")


def _chooses(one: Override, groups: Sequence[str]) -> bool:
    """Tell whether an override chooses an option; else it sets a value."""
    key = one.key_or_group
    if one.is_sweep_override() or key == "hydra" or key.startswith("hydra.searchpath"):
        raise _LeftToHydraError
    chooses = one.package is not None or "/" in key or (key in groups and not isinstance(one.value(), dict))
    if one.is_delete() and not chooses:
        raise _LeftToHydraError
    return chooses


def _apply(one: Override, config: DictConfig) -> None:
    """Set a value as Hydra does."""
    key, value = one.key_or_group, one.value()
    if one.type not in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
        raise _LeftToHydraError
    if one.is_add() and not isinstance(value, dict | list) and OmegaConf.select(config, key) is not None:
        raise _LeftToHydraError  # which refuses it
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


def _of_options(loader: ConfigLoader, name: str, options: list[str]) -> DictConfig:
    """Return what a config is composed to with nothing but options chosen."""
    key = (_folder(loader), name, *options)
    if key not in _merged or _stamps(key[0], _merged[key][0]) != _merged[key][0]:
        if len(_merged) >= _MOST_KEPT:
            _merged.clear()
        defaults = loader.compute_defaults_list(name, options, RunMode.RUN)
        stamps = _stamps(key[0], [str(default.config_path) for default in defaults.defaults])
        whole = _merge_all(loader, name, options, defaults.defaults, stamps)
        if whole.hydra.job.env_copy:
            raise _LeftToHydraError
        with open_dict(whole.hydra):
            whole.hydra.runtime.choices = dict(defaults.overrides.known_choices)
        _merged[key] = stamps, pickle.dumps(whole)
    config: DictConfig = pickle.loads(_merged[key][1])
    return config


def _merge_all(
    loader: ConfigLoader, name: str, options: list[str], defaults: Sequence[ResultDefault], stamps: Mapping[str, Any]
) -> DictConfig:
    """Merge the yamls of a defaults list: ours as plain data, and Hydra's own node, which has types, by Hydra."""
    own: dict[str, Any] = {}
    saying: list[object] = [_folder(loader), name]  # what has a say in Hydra's node
    for default in defaults:
        path, package = str(default.config_path), default.package or ""
        if package.partition(".")[0] != "hydra":
            content = _plain(path, str(saying[0]), stamps[path])
            for part in reversed(package.split(".") if package else []):
                content = {part: content}
            _merge(own, content)
            if "hydra" not in own:
                continue
            del own["hydra"]
        saying.append((path, package, stamps[path]))
    key = tuple(saying)
    if key not in _of_hydra:
        whole: DictConfig = compose(name, options, return_hydra_config=True)
        _of_hydra[key] = pickle.dumps(OmegaConf.masked_copy(whole, ["hydra"]))
        return whole
    whole = pickle.loads(_of_hydra[key])
    for group, node in own.items():
        whole[group] = node
    OmegaConf.set_struct(whole, True)
    return whole


@functools.lru_cache(maxsize=4096)
def _plain(path: str, folder: str, stamp: object) -> dict[str, Any]:
    """Return the content of a yaml without its defaults; not to be changed."""
    content: Any = OmegaConf.to_container(_load(path).config, resolve=False)
    if not isinstance(content, dict):
        raise _LeftToHydraError
    content.pop("defaults", None)
    return content


def _load(path: str) -> ConfigResult:
    return next(source for source in _loader().get_sources() if source.is_config(path)).load_config(path)


def _merge(into: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Merge plain data as OmegaConf merges them."""
    for key, value in content.items():
        there = into.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value)
        elif isinstance(value, dict) and isinstance(there, str) and "${" in there:
            raise _LeftToHydraError  # into what that refers to
        elif isinstance(value, dict):
            into[key] = {}
            _merge(into[key], value)
        elif value != "???" or key not in into:
            into[key] = value


def _stamps(folder: str, paths: Iterator[str] | Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return what says that yamls are as they were; ``None`` for those of Hydra's own."""
    return {path: _stamp(f"{folder}/{path.removesuffix('.yaml')}.yaml") for path in paths}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # not there, a name that is too long or none
        return None
    return found.st_mtime_ns, found.st_size


def _read_once(kind: type[ConfigSource]) -> None:
    """Have Hydra read each yaml once as long as it stays as it is; reading takes longer than composing does."""
    read: Callable[[ConfigSource, str], ConfigResult] = kind.load_config
    if kind.scheme() not in ("file", "pkg") or hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def load_config(self: ConfigSource, config_path: str) -> ConfigResult:
        stamp = _stamp(f"{self.path}/{config_path.removesuffix('.yaml')}.yaml")
        if stamp is None and self.provider != "hydra":  # of a package, which may change
            return read(self, config_path)
        key = (kind, self.provider, self.path, config_path, stamp)
        if key not in _read:
            _read[key] = pickle.dumps(read(self, config_path))
        result: ConfigResult = pickle.loads(_read[key])
        return result

    kind.load_config = load_config  # type: ignore[method-assign]


def keys_of_group(name: str, group: str, searchpath: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of a group with the dotted paths in their yamls; to be called while ``initialized``.

    Args:
        name: of the primary config.
        group: its name.
        searchpath: overrides that say where else configs lie.
    """
    loader = _loader()
    folder, sources = _folder(loader), loader.get_sources()
    keys = {}
    options = _options.__wrapped__ if searchpath else _options  # what else there is may change
    for option in options(name, group, tuple(searchpath), folder, _stamp(f"{folder}/{group}")):
        path = f"{group}/{option}"
        if any(source.is_config(path) for source in sources):
            keys[option] = _keys(path, folder, _stamps(folder, [path])[path])
        else:  # of the search path
            with contextlib.suppress(Exception):
                node = compose(name, [*searchpath, f"{group}={option}"])
                keys[option] = flat_keys(node.get(group))
    return keys


@functools.lru_cache(maxsize=256)
def _options(name: str, group: str, searchpath: tuple[str, ...], folder: str, stamp: object) -> list[str]:
    found: list[str] = _loader().get_group_options(group, config_name=name, overrides=list(searchpath))
    return found


def _spare_choices() -> None:
    """Have Hydra 1.3 make a config of all choices where a default refers to one, not for each yaml, which is half its time."""
    module: Any = importlib.import_module("hydra._internal.defaults_list")
    if (all_choices := getattr(module, "_create_interpolation_map", None)) is None:
        return  # of another Hydra

    def choices(overrides: Any, defaults: Any, self_added: Any) -> Any:
        if all(default.is_interpolation() is False for default in defaults):
            return None
        return all_choices(overrides, defaults, self_added)

    module._create_interpolation_map = choices


with contextlib.suppress(ImportError):
    _spare_choices()


@functools.lru_cache(maxsize=4096)
def _keys(path: str, folder: str, stamp: object) -> list[str]:
    return flat_keys(_load(path).config)
