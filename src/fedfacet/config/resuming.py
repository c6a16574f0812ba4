"""Where a run may be written to, and going on with one: what it was started with, and what may be different now."""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedfacet.config.checks import check_settings
from fedfacet.config.nodes import load_sealed_list, override_of, plain, value_of
from fedfacet.config.trust import check_saved_overrides
from fedfacet.cores import MAX_THREADS
from fedfacet.errors import CheckpointError, ConfigError, RunFinished
from fedfacet.storage.run_files import LIST, json_of

log = logging.getLogger(__name__)

FREE_ON_RESUME = (
    "resume", "task", "paths", "sweep", "engine", "logger", "wandb", "choices", "federation.rounds", "dataset.root",
    "dataset.download", "trust", "callbacks.save_checkpoint", "callbacks.progress", "callbacks.figures",
    "callbacks.heterogeneity_error", "deploy", "sites", "card", "roster",
)  # fmt: skip
"""Keys that may differ when a run is resumed, because no number of the run depends on them."""

SETTLED = ("threads", "memory_format", "precision", "compile")
"""Keys that are settled when a run begins where the command line leaves them open; its numbers depend on them."""


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
        elif left != right and (left, right) != (None, {}):  # an older run lacks a group whose option does nothing
            return full, left, right
    return None


def check_resumable(
    saved: Mapping[str, Any], given: Mapping[str, Any], finished_rounds: int, *, complete: bool = True, stopped: str = ""
) -> None:
    """Refuse to go on with a run under another configuration, or with one that is finished.

    Args:
        saved: the configuration the run was started with.
        given: the configuration it would go on with.
        finished_rounds: how many rounds are done.
        complete: whether all that follows the last round is done too.
        stopped: why the run ended before all its rounds were done; empty where it did not.

    Raises:
        CheckpointError: naming the key that differs, or the rounds that are done.
        RunFinished: if nothing is left to do.
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
    if stopped and complete:
        raise RunFinished(
            f"Expected a run that has not ended, but this one ended after round {finished_rounds} ({stopped}): start a new run "
            "with another `termination`.",
            finished_rounds,
        )
    rounds = given["federation"]["rounds"]
    if finished_rounds > rounds or (finished_rounds == rounds and complete):
        outcome = (
            f"Expected an unfinished run, but all its {finished_rounds} rounds are done: to train longer, pass a larger "
            "federation.rounds along with resume."
        )
        raise RunFinished(outcome, finished_rounds) if finished_rounds == rounds else CheckpointError(outcome)
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


def goes_on_by_itself(overrides: Sequence[str]) -> tuple[list[str], bool]:
    """Put the folder of a command line in the place of ``resume=auto``, or nothing where no run has got to a checkpoint there.

    Returns:
        The overrides, and whether ``resume=auto`` was among them and there is nothing to go on with.

    Raises:
        ConfigError: if ``paths.output_dir`` is not given, without which a run does not find itself again.
    """
    if value_of("resume", overrides) != "auto":
        return list(overrides), False
    others = [override for override in overrides if not override.startswith("resume=")]
    if (folder := value_of("paths.output_dir", overrides)) is None:
        raise ConfigError(
            "Expected paths.output_dir with resume=auto, or every start has a folder of its own, but got none: add "
            "paths.output_dir=FOLDER."
        )
    if not os.path.isfile(Path(folder) / "checkpoints" / "last.ckpt"):
        return others, True
    return [*others, override_of("resume", folder)], False


def ended_before(error: Exception, overrides: Sequence[str]) -> str:
    """Return what to tell a command that a supervisor gives again until it is done; empty where the error is one."""
    if not isinstance(error, RunFinished) or value_of("resume", overrides) != "auto":
        return ""
    return f"Nothing is left to do: {error.rounds} rounds are done in {value_of('paths.output_dir', overrides)}."


def resumed_overrides(resume: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of a resumed run.

    Returns:
        Those that the run was started with, then those given now, with the run's own folder as the output folder; and
        only the first of these.
    """
    run_dir = named = Path(resume)
    if run_dir.suffix == ".ckpt" and os.path.isfile(run_dir):
        folder = run_dir.parent.parent if run_dir.parent != Path() else Path("..")
        if run_dir.name not in ("last.ckpt", "previous.ckpt"):
            raise CheckpointError(
                "Expected `resume` to name a run folder, which goes on from its last checkpoint, or its previous.ckpt, but "
                f"got {run_dir}: give {folder}."
            )
        run_dir = folder
    if (elsewhere := value_of("paths.output_dir", overrides)) is not None and Path(elsewhere).absolute() != run_dir.absolute():
        raise CheckpointError(
            f"Expected a run to go on in its own folder, but got paths.output_dir={elsewhere} with resume={run_dir}: leave it "
            "out, or copy the folder and resume the copy."
        )
    saved = run_dir / ".hydra" / "overrides.yaml"
    # `Path.is_file` raises where a name is too long.
    if os.path.isfile(run_dir / "config.yaml") and not os.path.isfile(saved):
        raise CheckpointError(
            f"Expected `resume` to name a run of a command, but {run_dir} has no .hydra/overrides.yaml: run the script again "
            "that made it."
        )
    if not os.path.isfile(saved) or not os.path.isfile(run_dir / "config.yaml"):
        raise CheckpointError(
            f"Expected `resume` to name a run folder, but {run_dir} is none: give the folder that holds config.yaml."
        )
    check_links(run_dir)
    ours = ("resume=", "paths.output_dir=", "trust=")
    not_again = (*ours, "dataset.download=")  # what is missing is fetched only if it is asked for now
    # Another engine does not have the settings of the one before.
    replaced: tuple[str, ...] = ("engine=", "engine.") if any(override.startswith("engine=") for override in overrides) else ()
    replaced += tuple(f"{one.partition('=')[0]}=" for one in overrides if one.startswith("+"))
    before = [override for override in load_sealed_list(saved) if not override.startswith(replaced)]
    check_saved_overrides(before, overrides, saved)
    # Hydra's are among those given now.
    before = [one for one in before if not one.startswith("hydra.") and not one.lstrip("+~").startswith(not_again)]
    given = [*before, *overrides]
    # A key is added or removed once, though it is asked for again; Hydra's sweeper writes ~KEY=null for ~KEY.
    bare = [override.removesuffix("=null") for override in given]
    again = {number for number, override in enumerate(bare) if override.startswith(("~", "+")) and override in bare[:number]}
    kept = [override for number, override in enumerate(given) if number not in again and not override.startswith(ours)]
    # Hydra would overwrite .hydra/ there and then; the script replaces what must change in it, each file at one blow.
    own = [override_of("resume", named), override_of("paths.output_dir", run_dir), "hydra.output_subdir=null"]
    return [*kept, *own], before


_PLANNED = ("federation.rounds", "federation.cohort_size", "federation.on_bad_update")


def carried_over(saved: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what a resumed run takes from its checkpoint's configuration: settled settings, and the choice of engine=auto.

    Raises:
        CheckpointError: naming what is not as a run writes it; it may be somebody else's.
    """
    if lacking := [name for name in ("federation", "engine", "callbacks", *SETTLED) if name not in saved]:
        raise CheckpointError(f"Expected {file} to hold the configuration of a run, but its `{lacking[0]}` is missing.")
    settled, engine = {name: saved[name] for name in SETTLED}, saved["engine"]
    try:
        check_settings({*SETTLED, "seed", *_PLANNED}, saved)
    except ConfigError as error:
        raise CheckpointError(f"{error} It is in {file}.") from None
    if not isinstance(engine, Mapping) or not isinstance(engine.get("_target_"), str):
        raise CheckpointError(f"Expected `engine` to be a part, as a run writes it, but {file} has another: start a new run.")
    choice = engine.get("choice")
    if choice is not None and not _is_choice(choice):
        raise CheckpointError(f"Expected `engine.choice` to be as a run writes it, but {file} has another: start a new run.")
    return settled, choice


def _is_choice(choice: Any) -> bool:
    kinds = {"engine": str, "workers": int, "why": str}
    return (
        isinstance(choice, Mapping)
        and choice.get("engine") in ("sequential", "vectorized", "workers")
        and (choice["engine"] != "workers" or "workers" in choice)
        and all(type(value) is kinds.get(key) and "${" not in str(value) for key, value in choice.items())
        and 1 <= choice.get("workers", 1) <= MAX_THREADS
    )


def check_links(run_dir: Path) -> None:
    """Refuse links in a run folder, which a run would write to or clear up, and pipes, which it would wait for.

    W&B's own folder has links of W&B. What it reads there as its settings may name a host.

    Raises:
        CheckpointError: naming the first.
    """
    for settings in (run_dir / "wandb" / "settings", run_dir / ".wandb" / "settings"):
        if os.path.lexists(settings):
            raise CheckpointError(
                f"Expected a run folder without settings of W&B, but there is {settings}, which may name a host: remove it."
            )
    for folder, folders, files in os.walk(run_dir):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry == run_dir / "wandb" and not entry.is_symlink():
                continue
            grows = entry.suffix in (".csv", ".log")
            if entry.is_symlink():
                what = f"leads to {os.readlink(entry)}"
            elif not (entry.is_file() or entry.is_dir()):
                what = "is neither"
            elif grows and entry.stat().st_nlink > 1 and not entry.is_dir():
                what = "lies at another path too, where it would grow as well"
            else:
                continue
            raise CheckpointError(
                f"Expected a run folder of files and folders of its own, but {entry} {what}: put a copy there."
            )
        if Path(folder) == run_dir:
            folders[:] = [name for name in folders if name != "wandb"]


def check_resume(config: DictConfig, run_dir: Path) -> None:
    """Refuse to go on with the run of a folder under another configuration, or if it is finished.

    Raises:
        CheckpointError: as ``check_resumable``, or if the folder has no checkpoint that can be read.
    """
    from fedfacet.storage import checkpoint  # imports torch, which --help should not wait for

    given = plain(config)
    path = checkpoint.asked_for(run_dir, config.resume)
    state, saved = checkpoint.load(path)
    settled, _ = carried_over(saved, path)
    given |= {name: value for name, value in settled.items() if given[name] is None}
    for key in ("rounds", "on_bad_update"):  # free for other runs
        asked, planned = given["federation"][key], saved["federation"][key]
        if given["choices"].get("sweep") is not None and asked != planned:
            raise CheckpointError(
                f"Expected federation.{key}={planned} for {run_dir}, a sweep's cell and named by its settings, but got "
                f"{asked}: give the sweep's command with federation.{key}={asked}, for a cell of its own."
            )
    check_resumable(saved, given, state.round, complete=is_complete(run_dir, state.round), stopped=state.stopped)


def is_complete(run_dir: Path, finished_rounds: int) -> bool:
    """Tell whether a run got as far as its summary; one that was killed between its last round and that has work left.

    Args:
        run_dir: the run folder, which need not exist.
        finished_rounds: after how many rounds the summary must have been written, unless `termination` ended the run before.
    """
    try:
        summary = json_of(run_dir / "summary.json")
    except CheckpointError:
        return False
    outcome = summary if isinstance(summary, dict) else {}
    reached, stopped = outcome.get("rounds"), bool(outcome.get("stopped"))
    all_done = reached == finished_rounds or (stopped and isinstance(reached, int) and reached <= finished_rounds)
    return outcome.get("status") == "finished" and all_done


MIN_FREE_BYTES = 64 << 20
"""Below this much free disk no run is started."""


LEFT_BEHIND = frozenset({".hydra", "train.log", "describe.log"})
"""What Hydra makes in a folder before a run begins."""


BEFORE_THE_FIRST_CHECKPOINT = LEFT_BEHIND | {"config.yaml", "partition.json", "partition.npz", "checkpoints", LIST}
"""What lies in the folder of a run that was killed as it began."""


def check_new(run_dir: Path, *, begun: bool = False) -> None:
    """Refuse a folder that cannot be written to, that lies in a run, or that holds anything.

    Args:
        run_dir: the run folder, which need not exist.
        begun: whether it may hold what a run writes before its first checkpoint, and which is written again.
    """
    check_writable(run_dir)
    if not begun and ((run_dir / "config.yaml").exists() or (run_dir / "metrics.csv").exists()):
        raise ConfigError(
            f"Expected a new output folder, but {run_dir} already holds a run: choose another paths.output_dir, or go on "
            f"with that run by `{override_of('resume', run_dir)}`."
        )
    for parent in run_dir.absolute().parents:
        if (parent / "config.yaml").exists() and (parent / "partition.json").exists():
            raise ConfigError(
                f"Expected an output folder outside of other runs', but {run_dir} lies in that of the run {parent}: choose "
                "another paths.output_dir."
            )
    held = {entry.name for entry in run_dir.iterdir()} if run_dir.is_dir() else set()
    if strangers := sorted(held - (BEFORE_THE_FIRST_CHECKPOINT if begun else LEFT_BEHIND)):
        remedy = "choose another paths.output_dir"
        if not set(strangers) - BEFORE_THE_FIRST_CHECKPOINT:
            remedy += ", or add resume=auto with it, which begins a run again that was killed before its first checkpoint"
        raise ConfigError(f"Expected a new or an empty output folder, but {run_dir} holds {strangers[0]!r}: {remedy}.")


def _is_there(path: Path) -> bool:
    """Tell whether a path exists; ``Path.exists`` of Python 3.14 also says no where that cannot be found out."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_writable(run_dir: Path) -> None:
    """Refuse a folder that cannot be written to, or whose disk is nearly full."""
    if run_dir.parts[:1] == ("~",):
        raise ConfigError(f"Expected a folder, but got {run_dir}, in which the shell has left the ~: write it out.")
    try:
        existing = next(parent for parent in [run_dir, *run_dir.absolute().parents] if _is_there(parent))
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
