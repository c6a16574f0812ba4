"""Train a federation: ``python src/train.py [group=option] [key=value] ...``; the README shows how."""

import contextlib
import errno
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedfacet import __version__
from fedfacet import config as configuration
from fedfacet.errors import ConfigError, FedFacetError, Interrupted
from fedfacet.runs.lock import LOCK_FILE, Process, holder_of, lock, sole
from fedfacet.runs.whole_file import written_whole

if TYPE_CHECKING:
    from fedfacet.build import FederatedData

log = logging.getLogger("fedfacet.train")

failures: dict[Path, str] = {}
"""Of the jobs that failed in this process while others went on: the run folder, and what was wrong."""


def main() -> None:
    """Check the whole command line, then let Hydra run its jobs."""
    signal.signal(signal.SIGINT, leave)
    try:
        if (shown := configuration.shown("train", sys.argv)) is not None:
            print(shown, end="")
            return
        sys.argv, jobs = configuration.preflight("train", sys.argv)
        cells = {Path(os.path.abspath(run_dir)): job.federation.rounds for job, run_dir in jobs if is_new_cell(job)}
        if cells:
            check_alone(jobs[0][0])
            finished = [run_dir for run_dir, rounds in cells.items() if configuration.is_complete(run_dir, rounds)]
            print(f"{len(cells)} cells in {jobs[0][1].parent}; finished already, and skipped: {len(finished)}.", flush=True)
            if len(finished) == len(cells):
                return
        else:
            served = [serve(job) for job, _ in jobs]
            if any(served):
                return
            for job, run_dir in jobs:
                check(job, run_dir)
    except (FedFacetError, ValueError, TypeError) as error:
        refuse(error)
    job = hydra.main(version_base="1.3", config_path=str(configuration.conf_dir()), config_name="train")(train)
    if {"-h", "--help"} & set(sys.argv):
        print_wrapped(job)
    else:
        job()
    if cells:
        sys.exit(take_stock(cells))
    if failures:
        sys.exit(name_failures(failures))


def print_wrapped(tell_help: Callable[[], None]) -> None:
    """Print what Hydra says for --help, with the groups' lists of options folded to the terminal's width."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            tell_help()  # it leaves by SystemExit
    finally:
        width = min(max(shutil.get_terminal_size((128, 24)).columns, 80), 128)
        for line in said.getvalue().splitlines():
            is_list = re.match(r"\w+: \w+,", line)
            print(textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) if is_list else line)


def check(job: DictConfig, run_dir: Path) -> None:
    """Have every part of a job made once, so that what one of them refuses comes out before anything is written."""
    from fedfacet import checkpoint
    from fedfacet.build import build  # torch and lightning load here, so that --help need not wait for them

    federation = build(job, run_dir)
    if job.resume is not None:
        federation.restore(checkpoint.load(run_dir / "checkpoints" / "last.ckpt")[0])


def train(config: DictConfig) -> float | None:
    """Run one job in its run folder; return the validation worst-group accuracy of the last round, for sweepers."""
    own = HydraConfig.get()
    run_dir = Path(own.runtime.output_dir)
    config = configuration.finalized(config, own.overrides.task, own.runtime.choices)
    # Of what is Hydra's own, where the options of others lie is what a resume must know.
    searched = [override for override in own.overrides.hydra if override.startswith("hydra.searchpath=")]
    overrides = [*searched, *own.overrides.task]
    if not configuration.is_cell(config):
        try:
            return run_alone(config, run_dir, overrides)
        except Refused as refusal:
            # Another launcher's jobs lie in other processes, and the ranks of a distributed one would lose count.
            basic = own.mode is RunMode.MULTIRUN and own.launcher._target_.endswith(".BasicLauncher")
            if not basic or configuration.make(config.engine).spans_processes:
                raise
            signal.signal(signal.SIGINT, leave)
            failures[run_dir] = f"{' '.join(overrides)}: {refusal}"
            return None
    with lock(run_dir) as holder:
        if is_new_cell(config):
            return run_cell(config, run_dir, overrides, holder)
        if holder is not None:
            refuse(ConfigError(f"Expected a run that nobody works at, but {run_dir} is held by {holder}: wait for it."))
        return run(config, run_dir, overrides)


def run_alone(config: DictConfig, run_dir: Path, overrides: Sequence[str]) -> float | None:
    """Run one job in its folder, or go on with it, unless another process works there."""
    try:
        if serve(config):  # where Hydra's launcher started several processes
            return None
    except FedFacetError as error:
        log.info("Refused: %s", error)
        refuse(error)
    with sole(run_dir / "train.log") as alone:
        if not alone:
            refuse(ConfigError(f"Expected a run that nobody works at, but another process is at {run_dir}: wait for it."))
        return run(config, run_dir, overrides)


def run_cell(config: DictConfig, run_dir: Path, overrides: Sequence[str], holder: Process | None) -> float | None:
    """Run a cell of a sweep, or go on with it, unless it is finished or another process works at it; its failure is noted."""
    if configuration.is_complete(run_dir, config.federation.rounds):
        return validation_of(run_dir)
    if holder is not None:
        print(f"{run_dir} is left to {holder}; if that is gone, remove {run_dir / LOCK_FILE}")
        return None
    if (run_dir / "checkpoints" / "last.ckpt").exists():
        config.resume = str(run_dir)
    asked = " ".join(override for override in overrides if not override.startswith("sweep="))
    print(f"{run_dir} {'goes on' if config.resume else 'begins'}: {asked}", flush=True)
    try:
        try:
            check_alone(config)
            if config.resume is not None:
                configuration.check_resume(config, run_dir)
            check(config, run_dir)
        except (FedFacetError, ValueError, TypeError) as error:
            log.info("Refused: %s", error)
            refuse(error)
        return run(config, run_dir, overrides)
    except Refused as refusal:
        fault = str(refusal)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    signal.signal(signal.SIGINT, leave)
    failures[run_dir] = f"{asked}: {fault}"
    return None


def run(config: DictConfig, run_dir: Path, overrides: Sequence[str]) -> float | None:
    """Run one job in its folder, or go on with it."""
    import torch

    from fedfacet import checkpoint
    from fedfacet.analysis.console import print_results
    from fedfacet.build import build, load_data, settle
    from fedfacet.runs.interruption import Interruption

    threads = torch.get_num_threads()
    try:
        log.info("fedfacet %s: %s", __version__, shlex.join(["python", *sys.argv]))
        saved = None
        if config.resume is not None:
            saved, saved_config = checkpoint.load(run_dir / "checkpoints" / "last.ckpt")
            for name in configuration.SETTLED:
                config[name] = saved_config[name]
            if "choice" in config.engine:  # of engine=auto
                config.engine.choice = saved_config["engine"].get("choice")
        settle(config)
        federation = build(config, run_dir)
        if saved is not None:
            check_sums(saved_config["engine"], config.engine)
            federation.restore(saved)
        with contextlib.closing(federation.engine):
            federation.engine.share(configuration.plain(config))
            write_run_folder(run_dir, config, load_data(config), overrides)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # what a second Ctrl-C does: callbacks see to their end
            with Interruption() as interruption:
                federation.fit(interruption.poll)
            signal.signal(signal.SIGINT, leave)
    except Interrupted as stop:
        log.info("Stopped by %s after round %d.", signal.Signals(stop.signal).name, federation.state.round)
        print(f"Stopped; {how_to_go_on(run_dir, config)}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        log.info("Stopped at once.")
        print(f"Stopped at once; {how_to_go_on(run_dir, config)}", file=sys.stderr)
        sys.exit(130)
    except FedFacetError as error:
        log.info("Refused: %s", error)
        refuse(error)
    except Exception as error:
        log.info("Failed.", exc_info=True)
        if not out_of_space(error):
            raise
        refuse(
            FedFacetError(
                f"Expected free disk space for {run_dir}, but there is none left: free some; {how_to_go_on(run_dir, config)}"
            )
        )
    finally:
        torch.set_num_threads(threads)  # the next job of this process has a choice of its own
    log.info("Finished round %d.", federation.state.round)
    if not (run_dir / "summary.json").exists():  # the callback that writes it was left out
        print(f"run folder  {run_dir}")
        return None
    print_results(json.loads((run_dir / "summary.json").read_text(encoding="utf-8")), load_data(config), run_dir)
    return validation_of(run_dir)


def check_sums(*engines: Mapping[str, Any]) -> None:
    """Refuse to go on with a run by an engine that sums in another order than the one that it was started with."""
    was, now = ("vectorized" in f"{engine['_target_']} {(engine.get('choice') or {}).get('engine')}" for engine in engines)
    if was != now:
        raise ConfigError(
            f"Expected {'engine=vectorized' if was else 'an engine that is exact to the last bit'}, as the run was started "
            f"with, but got {'one that adds up in another order' if was else 'vectorized'}: leave `engine` out."
        )


def validation_of(run_dir: Path) -> float | None:
    """Return the validation worst-group accuracy of a finished run's last round, for sweepers."""
    worst: float | None = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["final"].get("val/acc_worst_group")
    return worst


def take_stock(cells: Mapping[Path, int]) -> int:
    """Say what has become of a sweep's cells, in whichever process each was run; return the exit status."""
    left = [run_dir for run_dir, rounds in cells.items() if not configuration.is_complete(run_dir, rounds)]
    elsewhere = [run_dir for run_dir in left if run_dir not in failures and holder_of(run_dir)]
    failed = [run_dir for run_dir in left if run_dir not in elsewhere]
    underway = f", {len(elsewhere)} under way in other processes" if elsewhere else ""
    print(f"{len(cells) - len(left)} of {len(cells)} cells are finished{underway}.")
    return name_failures({run_dir: failures.get(run_dir, "see its train.log") for run_dir in failed})


def name_failures(faults: Mapping[Path, str]) -> int:
    """Say which jobs are not finished, and why; return the exit status."""
    for run_dir, fault in faults.items():
        print(f"not finished: {run_dir}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def is_new_cell(config: DictConfig) -> bool:
    """Tell a cell of a sweep from one that ``resume`` names."""
    return configuration.is_cell(config) and config.resume is None


def check_alone(config: DictConfig) -> None:
    """Refuse to have several processes run the cells of a sweep together, which could not agree on what is left to do."""
    processes = num_started()
    if configuration.make(config.engine).spans_processes:
        from fedfacet.parallel.ranks import find_place

        processes = find_place().num_ranks
    if processes > 1:
        raise ConfigError(
            f"Expected a process per cell of a sweep, but {processes} were started together: give the same command in as many "
            "processes as there is room for, with another engine than distributed."
        )


def num_started() -> int:
    """Return how many processes torchrun has started together."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def serve(config: DictConfig) -> bool:
    """Run clients for rank 0, if this is another rank of ``engine=distributed``; tell whether it was.

    Such a process takes its configuration from rank 0, so that nothing is decided twice, and leaves nothing on the disk.
    """
    from fedfacet.build import build, settle

    engine = configuration.make(config.engine)
    if (started := num_started()) > 1 and not engine.spans_processes:
        raise ConfigError(
            f"Expected engine=distributed where torchrun starts {started} processes, but got {engine.name}: add it, or start "
            "the script with python."
        )
    if engine.rank == 0:
        return False
    settings = OmegaConf.create(engine.share())
    settle(settings)
    build(settings, Path(settings.paths.output_dir)).engine.serve()
    return True


def write_run_folder(run_dir: Path, config: DictConfig, data: "FederatedData", overrides: Sequence[str]) -> None:
    """Write what is known before the first round: the resolved configuration, the overrides for a resume, the partition."""
    settings = configuration.plain(config) | {"resume": None}
    settings["paths"]["output_dir"] = str(run_dir)  # what ${now:...} was, and a job of a sweep lies elsewhere
    clients = [client.tolist() for client in data.partition.indices]
    counts = [matrix.counts.astype(int).tolist() for matrix in data.matrices]
    partition = {
        "digest": data.partition.digest,
        "num_clients": len(clients),
        "class_names": data.dataset.class_names,
        "attribute_names": data.dataset.attribute_names,
        "counts": counts,
        "indices": clients,
        "validation": data.val.tolist(),
        "num_test": len(data.dataset.test),
    }
    if any(map(len, data.local_holdout)):
        partition["local_holdout"] = [held_out.tolist() for held_out in data.local_holdout]
    for name, content in (
        (".hydra/overrides.yaml", OmegaConf.to_yaml(list(overrides))),
        ("partition.json", json.dumps(partition) + "\n"),
        ("config.yaml", OmegaConf.to_yaml(settings)),
    ):
        file = run_dir / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(file) as unfinished:
            unfinished.write_text(content, encoding="utf-8")


def how_to_go_on(run_dir: Path, config: DictConfig) -> str:
    """Return the command that goes on with a run that was stopped."""
    if configuration.is_cell(config):
        return "to go on, give the same command again."
    if not (run_dir / "checkpoints" / "last.ckpt").exists():
        return f"nothing was saved, so remove {run_dir} and start again."
    return f"to go on:\n  python src/train.py {shlex.quote(configuration.override_of('resume', run_dir))}"


def out_of_space(error: BaseException | None) -> bool:
    """Tell whether a full disk is what an error comes from; torch and safetensors have their own words for it."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def leave(*_: object) -> None:
    """End the process at once, as Ctrl-C asks while there is nothing to save: before the first round and after the last.

    Not by KeyboardInterrupt: raised in the midst of OmegaConf it comes out as another error.
    """
    os._exit(130)


class Refused(SystemExit):
    """The end of a run that cannot go on for a reason that was said in one sentence; status 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(2)
        self.sentence = sentence

    def __str__(self) -> str:
        """Return what was said."""
        return self.sentence


def refuse(error: Exception) -> NoReturn:
    """Say what is wrong in one sentence and exit with status 2."""
    print(f"error: {error}", file=sys.stderr)
    raise Refused(str(error))


if __name__ == "__main__":
    main()
