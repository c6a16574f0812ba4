"""Checking a whole command line, every job of it, before Hydra makes a folder."""

import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fedfacet.config.compose import compose_job, conf_dir, config_groups, quoted_options
from fedfacet.config.nodes import plain
from fedfacet.config.unused import check_used
from fedfacet.errors import CheckpointError, ConfigError

log = logging.getLogger(__name__)

FREE_ON_RESUME = (
    "resume", "task", "paths", "engine", "logger", "wandb", "choices", "federation.rounds", "callbacks.save_checkpoint",
    "callbacks.progress", "callbacks.figures", "callbacks.heterogeneity_error", "dataset.root", "dataset.download",
)  # fmt: skip
"""Keys that may differ when a run is resumed, because no number of the run depends on them."""

SETTLED = ("threads", "memory_format", "precision", "compile")
"""Keys that are settled when a run begins where the command line leaves them open; its numbers depend on them."""

MIN_FREE_BYTES = 64 << 20
"""Below this much free disk no run is started."""


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
        of_the_sweep = _of_the_sweep(name, overrides)
        jobs = _multirun_jobs(name, of_the_sweep, overrides)
        swept = {override.partition("=")[0] for override in of_the_sweep}
        return [argv[0], *options, *_left_to_the_jobs(name, overrides, swept)], jobs
    if (resume := _value_of("resume", overrides)) is not None:
        overrides = _resumed_overrides(resume, overrides)
    config, hydra_node = compose_job(name, overrides)
    check_used(name, config, overrides)
    run_dir = Path(hydra_node.run.dir)
    if resume is not None:
        check_resume(config, run_dir)
    elif (sweep := config.choices.get("sweep")) is not None:
        raise ConfigError(f"Expected sweep={sweep} with a run per combination, but got it for a single run: add `-m`.")
    else:
        _check_unused(run_dir)
    return [argv[0], *options, *overrides], [(config, run_dir)]


def shown(name: str, argv: Sequence[str]) -> str | None:
    """Return the yaml that ``--cfg job`` asks for: one job's configuration as its run would use it.

    Hydra's own answer is the configuration before ``where_present`` and the step budget.

    Returns:
        ``None`` where nothing is asked for, or something that is Hydra's to say.

    Raises:
        ConfigError: the first mistake, in one sentence.
    """
    arguments, _ = get_args_parser().parse_known_intermixed_args(quoted_options(argv)[1:])
    if arguments.cfg != "job" or arguments.package or arguments.multirun or arguments.help or arguments.hydra_help:
        return None
    config, _ = compose_job(name, arguments.overrides)
    return OmegaConf.to_yaml(config, resolve=arguments.resolve)


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
    if saved["federation"].get("on_bad_update") == "raise":  # no update was dropped so far, or the run would have ended there
        saved = {**saved, "federation": {**saved["federation"], "on_bad_update": given["federation"].get("on_bad_update")}}
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
    if finished_rounds == saved["federation"]["rounds"] < rounds:
        _check_longer(saved, finished_rounds)


def _check_longer(saved: Mapping[str, Any], finished_rounds: int) -> None:
    """Say that a run has been measured once more than one that is longer from the start; refuse where numbers hang on it."""
    extra = [
        f"callbacks.{name}.every_n_rounds={part['every_n_rounds']}"
        for name, part in saved["callbacks"].items()
        if name != "save_checkpoint" and finished_rounds % part.get("every_n_rounds", 1)
    ]
    if not extra:
        return
    if not str((saved.get("scheduler") or {}).get("metric", "train/")).startswith("train/"):
        raise CheckpointError(
            f"Expected a run that could have been longer from the start, but its scheduler has seen round {finished_rounds}, "
            f"which {extra[0]} would have left out: start a new run."
        )
    log.warning(
        "Round %d was measured because it was the last; a run that is longer from the start leaves it out (%s).",
        finished_rounds,
        ", ".join(extra),
    )


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
    run_dir = named = Path(resume)
    if run_dir.suffix == ".ckpt" and run_dir.is_file():
        folder = run_dir.parent.parent if run_dir.parent != Path() else Path("..")
        if run_dir.name not in ("last.ckpt", "previous.ckpt"):
            raise CheckpointError(
                "Expected `resume` to name a run folder, which goes on from its last checkpoint, or its previous.ckpt, but "
                f"got {run_dir}: give {folder}."
            )
        run_dir = folder
    if (elsewhere := _value_of("paths.output_dir", overrides)) is not None and Path(elsewhere).absolute() != run_dir.absolute():
        raise CheckpointError(
            f"Expected a run to go on in its own folder, but got paths.output_dir={elsewhere} with resume={run_dir}: leave it "
            "out, or copy the folder and resume the copy."
        )
    saved = run_dir / ".hydra" / "overrides.yaml"
    if not saved.is_file() or not (run_dir / "config.yaml").is_file():
        raise CheckpointError(
            f"Expected `resume` to name a run folder, but {run_dir} is none: give the folder that holds config.yaml."
        )
    ours = ("resume=", "paths.output_dir=")
    # Another engine does not have the settings of the one before.
    replaced = ("engine=", "engine.") if any(override.startswith("engine=") for override in overrides) else ()
    before = [override for override in map(str, OmegaConf.load(saved)) if not override.startswith(replaced)]
    given = [*before, *overrides]
    # A key is added or removed once, though it is asked for again; Hydra's sweeper writes ~KEY=null for ~KEY.
    bare = [override.removesuffix("=null") for override in given]
    again = {number for number, override in enumerate(bare) if override.startswith(("~", "+")) and override in bare[:number]}
    kept = [override for number, override in enumerate(given) if number not in again and not override.startswith(ours)]
    # Hydra would overwrite .hydra/ there and then; the script replaces what must change in it, each file at one blow.
    own = [override_of("resume", named), override_of("paths.output_dir", run_dir), "hydra.output_subdir=null"]
    return [*kept, *own]


def check_resume(config: DictConfig, run_dir: Path) -> None:
    """Refuse to go on with the run of a folder under another configuration, or if it is finished.

    Raises:
        CheckpointError: as ``check_resumable``, or if the folder has no checkpoint that can be read.
    """
    from fedfacet.runs import checkpoint  # imports torch, which --help should not wait for

    path = checkpoint.asked_for(run_dir, config.resume)
    state, saved = checkpoint.load(path)
    given = plain(config)
    if lacking := [name for name in ("federation", "engine", "callbacks", *SETTLED) if name not in saved]:
        raise CheckpointError(f"Expected {path} to hold the configuration of a run, but its `{lacking[0]}` is missing.")
    for name in SETTLED:
        given[name] = saved.get(name) if given[name] is None else given[name]
    for key in ("rounds", "on_bad_update"):  # free for other runs
        asked, planned = given["federation"][key], saved["federation"][key]
        if given["choices"].get("sweep") is not None and asked != planned:
            raise CheckpointError(
                f"Expected federation.{key}={planned} for {run_dir}, a sweep's cell and named by its settings, but got "
                f"{asked}: give the sweep's command with federation.{key}={asked}, for a cell of its own."
            )
    check_resumable(saved, given, state.round, complete=is_complete(run_dir, state.round))


def is_complete(run_dir: Path, finished_rounds: int) -> bool:
    """Tell whether a run got as far as its summary; one that was killed between its last round and that has work left.

    Args:
        run_dir: the run folder, which need not exist.
        finished_rounds: after how many rounds the summary must have been written.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(summary.get("status") == "finished" and summary.get("rounds") == finished_rounds)


def _check_unused(run_dir: Path) -> None:
    _check_writable(run_dir)
    if (run_dir / "config.yaml").exists() or (run_dir / "metrics.csv").exists():
        raise ConfigError(
            f"Expected a new output folder, but {run_dir} already holds a run: choose another paths.output_dir, or go on "
            f"with that run by `{override_of('resume', run_dir)}`."
        )


def _check_writable(run_dir: Path) -> None:
    if run_dir.parts[:1] == ("~",):
        raise ConfigError(f"Expected a folder, but got {run_dir}, in which the shell has left the ~: write it out.")
    try:
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


def _multirun_jobs(name: str, of_the_sweep: Sequence[str], overrides: Sequence[str]) -> list[tuple[DictConfig, Path]]:
    """Return the jobs that Hydra's basic sweeper will make of the overrides."""
    for key in ("resume", "paths.output_dir"):
        if any(override.startswith(f"{key}=") for override in overrides):
            remedy = (
                "resume the jobs one by one" if key == "resume" else "choose the folder of all jobs with paths.sweep_dir=DIR"
            )
            raise ConfigError(f"Expected `{key}` for a single run only, but got it with --multirun: {remedy}.")
    try:
        parsed = OverridesParser.create().parse_overrides([*of_the_sweep, *overrides])
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except HydraException as error:
        raise ConfigError(
            f"Expected overrides of the form key=value, but got {' '.join(overrides)}: {str(error).strip().splitlines()[0]}"
        ) from None
    jobs: list[tuple[DictConfig, Path]] = []
    for number, job in enumerate(itertools.chain.from_iterable(batches)):
        config, hydra_node = compose_job(name, job)
        check_used(name, config, job)
        with open_dict(hydra_node), read_write(hydra_node):
            hydra_node.job.num = number
        run_dir = Path(hydra_node.sweep.dir) / str(hydra_node.sweep.subdir)
        if config.choices.get("sweep") is not None:
            _check_writable(run_dir)
        elif run_dir in [other for _, other in jobs]:
            raise ConfigError(
                f"Expected a folder for each job, but several are to have {run_dir}: let hydra.sweep.subdir tell them apart."
            )
        else:
            _check_unused(run_dir)
        jobs.append((config, run_dir))
    return jobs


def _left_to_the_jobs(name: str, overrides: Sequence[str], swept: Set[str]) -> list[str]:
    """Return the overrides, those of keys that only the jobs have as ``++key=value``.

    Before the jobs Hydra composes what they have in common, without what is swept over, and refuses a plain ``key=value`` whose
    key it does not find there, such as a setting of the data set that a swept ``experiment`` brings. Where ``sweep=`` sweeps
    over that key, a value takes the place of its values only under the very same name, and so as a sweep of one.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = config_groups()
    fixed = [one for one in parsed if not one.is_sweep_override() and (one.is_hydra_override() or one.key_or_group in groups)]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        common = compose(name, [str(one.input_line) for one in fixed])
    left = []
    for one in parsed:
        given, key = str(one.input_line), one.key_or_group
        parent, _, leaf = key.rpartition(".")
        beside = OmegaConf.select(common, parent) if parent else common
        known = key in groups or one.is_hydra_override() or leaf in (beside or {})
        if not known and one.type is OverrideType.CHANGE and not one.is_sweep_override():
            given = f"{key}=choice({given.partition('=')[2]})" if key in swept else f"++{given}"
        left.append(given)
    return left


def _of_the_sweep(name: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides that ``sweep=`` stands for, which Hydra puts in front of those of the command line."""
    chosen = [override for override in overrides if override.startswith("sweep=")]
    if not chosen:
        return []
    if any("," in override for override in chosen):
        raise ConfigError(f"Expected one sweep at a time, but got {chosen[0]}: start one after the other, or side by side.")
    _, hydra_node = compose_job(
        name, [*chosen, *(override for override in overrides if override.startswith(("hydra.", "hydra/")))]
    )
    return [f"{key}={value}" for key, value in (hydra_node.sweeper.params or {}).items()]
