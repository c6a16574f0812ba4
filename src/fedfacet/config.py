"""Composing and checking a configuration before anything is written, and making what its nodes name.

With ``build.py`` the only room that sees a config.
"""

import difflib
import hashlib
import inspect
import itertools
import os
import shutil
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    "callbacks.progress", "dataset.root", "dataset.download",
)  # fmt: skip
"""Keys that may differ when a run is resumed, because no number of the run depends on them."""


MIN_FREE_BYTES = 64 << 20
"""Below this much free disk no run is started."""


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
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_explain(name, overrides, error)) from None
        for override in overrides:
            if override.startswith("+"):
                _check_added(name, composed, override)
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    config = finalized(own, overrides, composed.hydra.runtime.choices)
    try:
        plain(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"Expected every value to be given, but got: {str(error).splitlines()[0]}") from None
    for path, node in targets(config):
        check_arguments(path, node)
    return config, composed.hydra


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

    The settings of ``fidelity=`` and ``debug=`` are applied where the chosen options have the key and the command line does not
    set it, and the names of the chosen options are noted under ``choices``.
    """
    config = config.copy()
    given = {override.lstrip("+~").split("=")[0] for override in overrides}
    with open_dict(config):
        for key, value in dict(config.get("where_present") or {}).items():
            parent, _, leaf = str(key).rpartition(".")
            if key not in given and leaf in (OmegaConf.select(config, parent) or {}):
                OmegaConf.update(config, str(key), value)
        config.where_present = {}
        config.choices = {str(name): choice for name, choice in choices.items() if not str(name).startswith("hydra")}
        if config.get("smoke"):
            _shrink(config)
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the resolved configuration as plain data."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


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


def check_resumable(saved: Mapping[str, Any], given: Mapping[str, Any], finished_rounds: int) -> None:
    """Refuse to go on with a run under another configuration, or with one that is finished.

    Raises:
        CheckpointError: naming the key that differs, or the rounds that are done.
    """
    if (difference := differing_key(saved, given)) is not None:
        key, was, now = difference
        raise CheckpointError(
            f"Expected the configuration that the run was started with, but `{key}` was {was!r} and is now {now!r}: leave it "
            "out, or start a new run."
        )
    if finished_rounds >= given["federation"]["rounds"]:
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
    target = get_object(node["_target_"])
    parameters = inspect.signature(target).parameters
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    hints = {name: parameter.annotation for name, parameter in parameters.items()}
    for key, value in plain(node).items():
        if key in SPECIAL_KEYS:
            continue
        if key not in parameters:
            if takes_anything:
                continue
            raise ConfigError(_unknown(f"{path}.{key}", [f"{path}.{name}" for name in parameters]))
        if not _fits(value, hints.get(str(key))):
            raise ConfigError(
                f"Expected `{path}.{key}` to be {inspect.formatannotation(hints[str(key)])}, but got {value!r}: mend the value."
            )


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value may be meant for an annotation; only plain scalars are judged."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, types.NoneType):
        return isinstance(value, hint)
    return True


def _explain(name: str, overrides: Sequence[str], error: Exception) -> str:
    """Say in one sentence what is wrong with the first override that does not compose by itself."""
    groups = {str(key) for key in compose(name, return_hydra_config=True).hydra.runtime.choices}
    group_overrides = [override for override in overrides if override.split("=")[0].lstrip("+~") in groups]
    for override in overrides:
        others = [other for other in group_overrides if other != override]
        for context in ([], others):
            try:
                compose(name, [*context, override])
            except (HydraException, OmegaConfBaseException):
                continue
            break
        else:
            return _explain_override(name, override, groups)
    return str(error).splitlines()[0]


def _explain_override(name: str, override: str, groups: set[str]) -> str:
    if "=" not in override:
        return f"Expected overrides of the form key=value, but got `{override}`: see `--help`."
    key, value = override.lstrip("+~").split("=", 1)
    if key in groups:
        options = GlobalHydra.instance().config_loader().get_group_options(key)
        nearest = difflib.get_close_matches(value, options, 1)
        hint = f"did you mean `{key}={nearest[0]}`?" if nearest else "choose one of these."
        return f"Expected `{key}` to be one of {', '.join(options)}, but got `{value}`: {hint}"
    config = compose(name)
    return _unknown(key, [*_flat_keys(config), *groups])


def _unknown(key: str, valid: Sequence[str]) -> str:
    """Name the nearest valid keys, by full path and by last part."""
    leaf = key.rpartition(".")[2]
    valid = list(dict.fromkeys(valid))
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
        flat += [inner] if OmegaConf.is_interpolation(node, key) else _flat_keys(node[key], inner)
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
    known = compose(name)
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
    # Intermixed, because Hydra's own parse gives up on overrides that follow an option (`a=1 -m b=2`).
    arguments = get_args_parser().parse_intermixed_args(list(argv[1:]))
    if any(getattr(arguments, flag) for flag in ("help", "hydra_help", "cfg", "info", "shell_completion")):
        return list(argv), []
    overrides = list(arguments.overrides)
    options = [argument for argument in argv[1:] if argument not in arguments.overrides]
    if arguments.multirun:
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


def _value_of(key: str, overrides: Sequence[str]) -> str | None:
    values = [override.split("=", 1)[1] for override in overrides if override.startswith(f"{key}=")]
    return values[-1] if values and values[-1] not in ("null", "") else None


def _resumed_overrides(resume: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides a run was started with, then those given now, with the run's own folder as the output folder."""
    run_dir = Path(resume)
    if run_dir.suffix == ".ckpt":
        run_dir = run_dir.parents[1]
    saved = run_dir / ".hydra" / "overrides.yaml"
    if not saved.is_file() or not (run_dir / "config.yaml").is_file():
        raise CheckpointError(
            f"Expected `resume` to name a run folder, but {run_dir} is none: give the folder that holds config.yaml."
        )
    ours = ("resume=", "paths.output_dir=")
    kept = [override for override in [*OmegaConf.load(saved), *overrides] if not override.startswith(ours)]
    return [*kept, f"resume={run_dir}", f"paths.output_dir={run_dir}"]


def _check_resume(config: DictConfig, run_dir: Path) -> None:
    from fedfacet import checkpoint  # imports torch, which --help should not wait for

    state, saved = checkpoint.load(run_dir / "checkpoints" / "last.ckpt")
    given = plain(config)
    given["threads"] = given["threads"] or saved["threads"]
    check_resumable(saved, given, state.round)


def _check_unused(run_dir: Path) -> None:
    if (run_dir / "config.yaml").exists() or (run_dir / "metrics.csv").exists():
        raise ConfigError(
            f"Expected a new output folder, but {run_dir} already holds a run: choose another paths.output_dir, or go on with "
            f"that run by `resume={run_dir}`."
        )
    existing = next(parent for parent in [run_dir, *run_dir.absolute().parents] if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"Expected a folder that can be written to, but {existing} is not: choose another paths.output_dir.")
    if (free := shutil.disk_usage(existing).free) < MIN_FREE_BYTES:
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
