"""Composing and checking a configuration before anything is written, and making what its nodes name.

With ``build.py`` the only room that sees a config.
"""

import difflib
import functools
import hashlib
import inspect
import itertools
import json
import math
import shutil
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedfacet.errors import CheckpointError, ConfigError

SPECIAL_KEYS = {"_target_", "_partial_", "_convert_", "_recursive_", "_args_"}

FREE_ON_RESUME = (
    "resume", "task", "paths", "engine", "logger", "wandb", "choices", "federation.rounds", "callbacks.save_checkpoint",
    "callbacks.progress", "callbacks.figures", "dataset.root", "dataset.download",
)  # fmt: skip
"""Keys that may differ when a run is resumed, because no number of the run depends on them."""


MIN_FREE_BYTES = 64 << 20
"""Below this much free disk no run is started."""

MAX_THREADS = 1024
"""More torch threads than this are a slip of the keyboard."""

_NAME = str | int | float  # a folder may be called 2024

SETTINGS: dict[str, Any] = {
    "task": _NAME,
    "seed": int,
    "federation.rounds": int,
    "federation.cohort_size": int,
    "federation.on_bad_update": Literal["raise", "drop"],
    "threads": int | None,
    "deterministic": bool,
    "resume": _NAME | None,
    "smoke": bool,
    "where_present": dict,
    "paths.data_dir": _NAME,
    "paths.log_dir": _NAME,
    "paths.output_dir": _NAME,
    "paths.sweep_dir": _NAME,
    "wandb.project": str,
    "wandb.entity": str | None,
    "wandb.mode": Literal["online", "offline", "disabled"],
    "wandb.tags": list[str],
}
"""What the settings may be that belong to no class; those of a class are held to its signature."""

_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError)


def conf_dir() -> Path:
    """Return the folder of the yamls: ``conf/`` of a checkout, or the copy inside an installed package."""
    packaged = Path(__file__).parent / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "conf"


def compose_job(name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """Compose one job's configuration and check every key and every plain value.

    Returns:
        The configuration, finalised, and Hydra's own node of it.

    Raises:
        ConfigError: one sentence about the first override that is wrong, with the nearest valid names.
    """
    overrides = quoted_options(overrides)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        try:
            composed = compose(name, list(overrides), return_hydra_config=True)
        except _COMPOSE_ERRORS as error:
            raise ConfigError(_explain(name, overrides, error)) from None
        base, usual = _usual(name)
        for override in overrides:
            if override.startswith("+"):
                _check_added(name, composed, override)
    own = _without_hydra(composed)
    if strangers := [key for key in map(str, own) if key not in base and key not in composed.hydra.runtime.choices]:
        raise ConfigError(_unknown(strangers[0], _flat_keys(base)))
    config = finalized(own, overrides, composed.hydra.runtime.choices)
    _check_parts(base, config, usual)
    try:
        settings = plain(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"Expected every value to be given, but got: {str(error).splitlines()[0]}.") from None
    _check_settings(set(_flat_keys(base)), settings)
    for path, node in targets(config):
        check_arguments(path, node)
    return config, composed.hydra


@functools.cache
def _usual(name: str) -> tuple[DictConfig, dict[str, Any]]:
    """Return a config as it is without overrides, and the options it chooses; to be called while Hydra is initialized."""
    composed = compose(name, return_hydra_config=True)
    return _without_hydra(composed), dict(composed.hydra.runtime.choices)


def _without_hydra(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def quoted_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line's arguments with every option named ``true`` in quotes, which Hydra would take for a bool."""
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    quoted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.lstrip("+") in groups:
            value = ",".join(f"'{option}'" if option in ("true", "false") else option for option in value.split(","))
        quoted.append(f"{key}{equals}{value}")
    return quoted


def finalized(config: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> DictConfig:
    """Return the config as it will be used and saved.

    The settings under ``where_present`` (of ``experiment=``, ``fidelity=`` and ``debug=``) are applied where the chosen options
    have the key and the command line does not set it, and the names of the chosen options are noted under ``choices``.
    """
    config = config.copy()
    given = {override.lstrip("+~").split("=")[0] for override in overrides}
    with open_dict(config):
        for key, value in dict(config.get("where_present") or {}).items():
            parent, _, leaf = str(key).rpartition(".")
            if key not in given and leaf in (OmegaConf.select(config, parent) or {}):
                OmegaConf.update(config, str(key), value)
        config.where_present = {}
        for group in ("transforms", "callbacks", "logger"):
            if "federation" in config and group not in config:  # `logger=[]`: none of them is a choice too
                config[group] = {}
        config.choices = {str(name): choice for name, choice in choices.items() if not str(name).startswith("hydra")}
        if config.get("smoke"):
            _shrink(config)
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the resolved configuration as plain data."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def make(node: DictConfig, **facts: Any) -> Any:
    """Instantiate a node with those of the facts that its target's signature asks for."""
    accepted = inspect.signature(get_object(node["_target_"])).parameters
    # As a partial first, so that Hydra does not look into the facts (some hold configs) nor rewrite what a constructor says.
    factory = instantiate(node, _convert_="all", _partial_=True)
    if node.get("_partial_", False):
        return factory
    return factory(**{name: fact for name, fact in facts.items() if name in accepted})


def differing_key(saved: Mapping[str, Any], given: Mapping[str, Any], path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first key at which two configurations differ, with both values, leaving out what is free on resume."""
    for key in sorted({*saved, *given}):
        full = f"{path}{key}"
        if any(full == free or full.startswith(free + ".") for free in FREE_ON_RESUME):
            continue
        left, right = saved.get(key), given.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            if (inner := differing_key(left, right, f"{full}.")) is not None:
                return inner
        elif left != right:
            return full, left, right
    return None


def check_resumable(saved: Mapping[str, Any], given: Mapping[str, Any], finished_rounds: int, *, complete: bool = True) -> None:
    """Refuse to go on with a run under another configuration, or with one that is finished.

    Args:
        saved: the configuration the run was started with.
        given: the configuration it would go on with.
        finished_rounds: how many rounds are done.
        complete: whether all that follows the last round is done too.

    Raises:
        CheckpointError: naming the key that differs, or the rounds that are done.
    """
    if (difference := differing_key(saved, given)) is not None:
        key, was, now = difference
        group = key.partition(".")[0]
        options = [settings.get("choices", {}).get(group) for settings in (saved, given)]
        if options[0] != options[1]:  # another option of a group says more than the first of its settings
            key, (was, now) = group, options
        raise CheckpointError(
            f"Expected the configuration that the run was started with, but `{key}` was {was!r} and is now {now!r}: leave it "
            "out, or start a new run."
        )
    rounds = given["federation"]["rounds"]
    if finished_rounds > rounds or (finished_rounds == rounds and complete):
        raise CheckpointError(
            f"Expected an unfinished run, but all its {finished_rounds} rounds are done: to train longer, pass a larger "
            "federation.rounds along with resume."
        )


def targets(config: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    """Yield every node that names a class or function, with its dotted path."""
    if isinstance(config, DictConfig):
        if "_target_" in config:
            yield path, config
        for key in map(str, config):
            if not OmegaConf.is_interpolation(config, key) and config[key] is not None:
                yield from targets(config[key], f"{path}.{key}" if path else key)


def check_arguments(path: str, node: DictConfig) -> None:
    """Hold a node's keys to the signature of its target, and its plain values to the annotations.

    Raises:
        ConfigError: naming the key, what it may be, and the nearest valid names.
    """
    try:
        target = get_object(node["_target_"])
    except Exception:  # whatever a module may raise when it is imported
        raise ConfigError(
            f"Expected `{path}._target_` to name a class or function, but got {node['_target_']!r}: mend the name."
        ) from None
    parameters = inspect.signature(target).parameters
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    hints = {name: parameter.annotation for name, parameter in parameters.items()}
    for key, value in plain(node).items():
        if key in SPECIAL_KEYS:
            if key == "_partial_" and not isinstance(value, bool):
                raise _misfit(f"{path}.{key}", bool, value)
            continue
        if key not in parameters:
            if takes_anything:
                continue
            raise ConfigError(_unknown(f"{path}.{key}", [f"{path}.{name}" for name in parameters]))
        if not _fits(value, hints.get(str(key))):
            raise _misfit(f"{path}.{key}", hints[str(key)], value)


def _check_parts(base: DictConfig, config: DictConfig, usual: Mapping[str, Any], path: str = "") -> None:
    """Refuse a part that is missing, and a plain value in place of a part's settings; ``usual`` has the groups' defaults."""
    for key in map(str, base):
        if OmegaConf.is_interpolation(base, key) or not isinstance(base[key], DictConfig):
            continue
        full = f"{path}.{key}" if path else key
        if key not in config and path:
            continue  # `~callbacks.progress`
        given = config.get(key, DictConfig({}))
        if not isinstance(given, DictConfig):
            raise ConfigError(
                f"Expected settings under `{full}`, but got {given!r}: set one by `{full}.KEY=VALUE`, or leave all out "
                f"by `~{full}`."
            )
        if key not in config or ("_target_" in base[key] and "_target_" not in given):
            remedy = (
                f"choose an option, for example `{full}={usual[full]}`" if full in usual else "it has settings that are needed"
            )
            raise ConfigError(f"Expected `{full}` to be given, but it was left out: {remedy}.")
        _check_parts(base[key], given, usual, full)


def _check_settings(expected: set[str], settings: Mapping[str, Any]) -> None:
    """Hold the settings that belong to no class to ``SETTINGS``."""
    for key, hint in SETTINGS.items():
        value: Any = settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if key in expected and (not _fits(value, hint) or value == ""):
            raise _misfit(key, hint, value)
    threads = settings.get("threads")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"Expected `threads` between 1 and {MAX_THREADS}, or null, but got {threads}: mend the value.")


def _misfit(key: str, hint: Any, value: Any) -> ConfigError:
    return ConfigError(f"Expected `{key}` to be {_in_words(hint)}, but got {value!r}: mend the value.")


def _in_words(hint: Any) -> str:
    """Say what an annotation asks for."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, typing.get_args(hint))))
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "settings"
    if inspect.isclass(origin) and issubclass(origin, Sequence) and origin is not str:
        return f"a list, each entry {_in_words(arguments[0])}" if arguments else "a list"
    words = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text", types.NoneType: "null"}
    return words.get(hint) or inspect.formatannotation(hint)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value from a yaml may be meant for an annotation."""
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if not inspect.isclass(origin) or origin in (Any, object, inspect.Parameter.empty):
        return True
    if value is None or isinstance(value, bool | str):
        return origin is type(value)
    if isinstance(value, int | float):
        return (isinstance(value, origin) or origin is float) and (isinstance(value, int) or math.isfinite(value))
    if isinstance(value, list):
        inner = [option for option in typing.get_args(hint) if option is not Ellipsis]
        listlike = issubclass(origin, Iterable) and not issubclass(origin, str | Mapping)
        return listlike and (len(inner) != 1 or all(_fits(entry, inner[0]) for entry in value))
    return not issubclass(origin, int | float | str | Sequence | types.NoneType)  # settings of a part, or a mapping


def _explain(name: str, overrides: Sequence[str], error: Exception) -> str:
    """Say in one sentence what is wrong with the first override that does not compose by itself."""
    groups = set(map(str, _usual(name)[1]))
    chosen = [override for override in overrides if override.split("=")[0].lstrip("+~") in groups]
    for override in sorted(overrides, key=lambda one: one not in chosen):  # what is valid depends on the options chosen
        others = [other for other in chosen if other != override]
        for context in ([], others) if override in chosen else (others,):
            try:
                compose(name, [*context, override])
            except _COMPOSE_ERRORS as fault:
                error = fault
                continue
            break
        else:
            return _explain_override(name, override, others, error)
    return f"Expected overrides that go together, but got {' '.join(overrides)}: {_first_line(error)}"


def _explain_override(name: str, override: str, others: Sequence[str], error: Exception) -> str:
    groups = set(map(str, _usual(name)[1]))
    key, _, value = override.lstrip("+~").partition("=")
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, ValueError):
        return (
            f"Expected an override of the form key=value, but got `{override}`: see `--help`; a value with special characters "
            f"needs quotes that the shell keeps, as in \"{key or 'key'}='a, b'\"."
        )
    if parsed.is_sweep_override():
        return f"Expected one value for `{key}`, but got `{value}`: add `-m` for a run per value, or choose one."
    if key in groups:
        options = GlobalHydra.instance().config_loader().get_group_options(key)
        chosen = [option.strip(" '") for option in value.strip("[]").split(",")]
        wrong = [option for option in chosen if option not in options]
        if value == "null":
            hint = f"for none of them, give `~{key}`."
        elif not wrong:
            hint = (
                f"it is there already, so give `{key}={value}` without a prefix." if override[0] in "+~" else _first_line(error)
            )
        elif nearest := difflib.get_close_matches(wrong[0], options, 1):
            hint = f"did you mean `{key}={nearest[0]}`?"
        else:
            hint = "choose one of these."
        return f"Expected `{key}` to be one of {', '.join(options)}, but got `{value}`: {hint}"
    valid = _flat_keys(compose(name, list(others), return_hydra_config=key.startswith("hydra.")))
    if key in valid:
        return f"Expected a value that suits `{key}`, but got `{value}`: {_first_line(error)}"
    return _unknown(key, [*valid, *groups])


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _unknown(key: str, valid: Sequence[str]) -> str:
    """Name the nearest valid keys, by full path and by last part."""
    leaf = key.rpartition(".")[2]
    valid = [name for name in dict.fromkeys(valid) if name.rpartition(".")[2] not in SPECIAL_KEYS]
    nearest = difflib.get_close_matches(key, valid, 3, cutoff=0.6)
    nearest += [name for name in valid if name.rpartition(".")[2] == leaf and name not in nearest]
    if not nearest:
        parent = key.rpartition(".")[0]
        nearest = [name for name in valid if parent and name.startswith(f"{parent}.")][:8]
    names = ", ".join(f"`{name}`" for name in nearest[:8])
    return (
        f"Expected a known option, but got `{key}`: {f'the nearest are {names}.' if names else 'see `--help` for all of them.'}"
    )


def _flat_keys(node: Any, path: str = "") -> list[str]:
    """Return the dotted paths of all nodes and values."""
    if not isinstance(node, DictConfig):
        return [path]
    flat = [path] if path else []
    for key in map(str, node):
        inner = f"{path}.{key}" if path else key
        leaf = OmegaConf.is_interpolation(node, key) or OmegaConf.is_missing(node, key)
        flat += [inner] if leaf else _flat_keys(node[key], inner)
    return flat


def _check_added(name: str, config: DictConfig, override: str) -> None:
    """Refuse ``+key=value`` unless the key is an argument of the class that its node names (Hydra would take anything)."""
    key = override.lstrip("+").split("=", 1)[0].split("@")[0]
    if key.startswith("hydra.") or key in {str(group) for group in config.hydra.runtime.choices}:
        return
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        node = OmegaConf.select(config, ".".join(parts[:length]))
        if isinstance(node, DictConfig) and "_target_" in node:
            return  # check_arguments holds it to the signature
    known = _usual(name)[0]
    if OmegaConf.select(known, key) is None and key not in _flat_keys(known):
        raise ConfigError(_unknown(key, _flat_keys(known)))


def _shrink(config: DictConfig) -> None:
    """Make a run small: every kind of client once, a cohort of at most 3, and generated files where a data set reads some."""
    if "clients" in config.partition:
        for group in config.partition.clients:
            group.count = 1
    if "federation" in config:
        config.federation.cohort_size = min(3, config.federation.cohort_size)
    if "root" in config.dataset:
        wanted = hashlib.sha256(
            f"{OmegaConf.to_container(config.dataset)}{OmegaConf.to_container(config.partition)}".encode()
        ).hexdigest()[:12]
        config.dataset.root = str(Path(tempfile.gettempdir()) / "fedfacet-smoke" / wanted)


def preflight(name: str, argv: Sequence[str]) -> tuple[list[str], list[tuple[DictConfig, Path]]]:
    """Compose and check every job of a command line before Hydra makes a folder.

    Args:
        name: of the primary config.
        argv: the command line, the script first.

    Returns:
        The command line to give to Hydra (a resumed run's own overrides put in front), and per job its configuration and run
        folder; no job where Hydra is only asked for help or to print a config.

    Raises:
        FedFacetError: the first mistake, in one sentence.
    """
    argv = quoted_options(argv)
    arguments, strangers = get_args_parser().parse_known_intermixed_args(argv[1:])
    if strangers:
        raise ConfigError(f"Expected settings as key=value, without dashes, but got `{strangers[0]}`: see `--help`.")
    for flag in ("config_path", "config_name", "config_dir", "experimental_rerun"):
        if getattr(arguments, flag):
            raise ConfigError(
                f"Expected the configs that belong to this script, but got --{flag.replace('_', '-')}: to add a folder of your "
                "own, give \"hydra.searchpath=['file:///FOLDER']\"."
            )
    overrides = list(arguments.overrides)
    # Options first: Hydra takes all overrides in one piece only.
    options = [argument for argument in argv[1:] if argument not in overrides]
    if any(getattr(arguments, flag) for flag in ("help", "hydra_help", "cfg", "info", "shell_completion")):
        return [argv[0], *options, *overrides], []
    if arguments.multirun or str(_value_of("hydra.mode", overrides)).upper() == "MULTIRUN":
        return [argv[0], *options, *overrides], _multirun_jobs(name, overrides)
    if (resume := _value_of("resume", overrides)) is not None:
        overrides = _resumed_overrides(resume, overrides)
    config, hydra_node = compose_job(name, overrides)
    run_dir = Path(hydra_node.run.dir)
    if resume is not None:
        _check_resume(config, run_dir)
    else:
        _check_unused(run_dir)
    return [argv[0], *options, *overrides], [(config, run_dir)]


def override_of(key: str, value: object) -> str:
    """Return the override from which Hydra reads a value as it is, quoted only where it must be."""
    text = str(value)
    try:
        parsed = OverridesParser.create().parse_override(f"{key}={text}")
        if not parsed.is_sweep_override() and parsed.value() == text:
            return f"{key}={text}"
    except HydraException:
        pass
    escaped = text.replace("'", "\\'")
    return f"{key}='{escaped}'"


def _value_of(key: str, overrides: Sequence[str]) -> str | None:
    """Return the value that a command line gives a key, without quotes; ``None`` where it gives none, or null."""
    given = [override for override in overrides if override.startswith(f"{key}=")]
    try:
        parsed = OverridesParser.create().parse_overrides(given)
    except HydraException:
        return None  # compose_job says what is wrong
    values = [override.value() for override in parsed if not override.is_sweep_override()]
    return str(values[-1]) if values and values[-1] not in (None, "") else None


def _resumed_overrides(resume: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides a run was started with, then those given now, with the run's own folder as the output folder."""
    run_dir = Path(resume)
    if run_dir.suffix == ".ckpt" and run_dir.is_file():
        run_dir = run_dir.parents[1]
    saved = run_dir / ".hydra" / "overrides.yaml"
    if not saved.is_file() or not (run_dir / "config.yaml").is_file():
        raise CheckpointError(
            f"Expected `resume` to name a run folder, but {run_dir} is none: give the folder that holds config.yaml."
        )
    ours = ("resume=", "paths.output_dir=")
    kept = [override for override in [*OmegaConf.load(saved), *overrides] if not override.startswith(ours)]
    # Hydra would overwrite .hydra/ there and then; the script replaces what must change in it, each file at one blow.
    own = [override_of("resume", run_dir), override_of("paths.output_dir", run_dir), "hydra.output_subdir=null"]
    return [*kept, *own]


def _check_resume(config: DictConfig, run_dir: Path) -> None:
    from fedfacet import checkpoint  # imports torch, which --help should not wait for

    state, saved = checkpoint.load(run_dir / "checkpoints" / "last.ckpt")
    given = plain(config)
    given["threads"] = given["threads"] or saved["threads"]
    check_resumable(saved, given, state.round, complete=_is_complete(run_dir, state.round))


def _is_complete(run_dir: Path, finished_rounds: int) -> bool:
    """Tell whether a run got as far as its summary; one that was killed between its last round and that has work left."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(summary.get("status") == "finished" and summary.get("rounds") == finished_rounds)


def _check_unused(run_dir: Path) -> None:
    try:
        if (run_dir / "config.yaml").exists() or (run_dir / "metrics.csv").exists():
            raise ConfigError(
                f"Expected a new output folder, but {run_dir} already holds a run: choose another paths.output_dir, or go on "
                f"with that run by `{override_of('resume', run_dir)}`."
            )
        existing = next(parent for parent in [run_dir, *run_dir.absolute().parents] if parent.exists())
        with tempfile.TemporaryFile(dir=existing):  # asked for permission, root is told nothing about read-only systems
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise ConfigError(
            f"Expected a folder that can be written to for {run_dir}, but there is none ({error.strerror}): choose another "
            "paths.output_dir."
        ) from None
    if free < MIN_FREE_BYTES:
        raise ConfigError(
            f"Expected at least {MIN_FREE_BYTES >> 20} MiB of free disk for {run_dir}, but {free >> 20} MiB are left: free "
            "some, or choose another paths.output_dir."
        )


def _multirun_jobs(name: str, overrides: Sequence[str]) -> list[tuple[DictConfig, Path]]:
    """Return the jobs that Hydra's basic sweeper will make of the overrides."""
    for key in ("resume", "paths.output_dir"):
        if _value_of(key, overrides) is not None:
            remedy = (
                "resume the jobs one by one" if key == "resume" else "choose the folder of all jobs with paths.sweep_dir=DIR"
            )
            raise ConfigError(f"Expected `{key}` for a single run only, but got it with --multirun: {remedy}.")
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except HydraException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    jobs = []
    for number, job in enumerate(itertools.chain.from_iterable(batches)):
        config, hydra_node = compose_job(name, job)
        sweep_dir = Path(hydra_node.sweep.dir)
        _check_unused(sweep_dir / str(number))
        jobs.append((config, sweep_dir / str(number)))
    return jobs
