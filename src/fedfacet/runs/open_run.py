"""A run folder opened: everything is made, or taken up from the last checkpoint, and put away again afterwards."""

import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fedfacet import __version__
from fedfacet import config as configuration
from fedfacet.build import build, load_data, settle
from fedfacet.config.nodes import sealed_list
from fedfacet.data.federated import FederatedData
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, Interrupted, first_line
from fedfacet.federation import Federation
from fedfacet.parallel.processes import keep_freed_memory
from fedfacet.records import FederationState
from fedfacet.runs.ending import Interruption
from fedfacet.runs.job import Job
from fedfacet.shell_words import typed
from fedfacet.storage import checkpoint
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.dealt import write_dealt
from fedfacet.storage.run_files import LIST, write_list

log = logging.getLogger("fedfacet.train")


def write_partition(run_dir: Path, config: DictConfig, federation: Federation) -> None:
    """Write who has which sample."""
    data: FederatedData = load_data(config)
    facts = {
        "digest": data.partition.digest,
        "num_clients": data.partition.num_clients,
        "class_names": data.dataset.class_names,
        "attribute_names": data.dataset.attribute_names,
        **({"client_names": data.client_names} if data.client_names else {}),
        **({"inputs": data.dataset.inputs_read} if data.dataset.inputs_read else {}),
    }
    others: dict[str, Any] = {}
    if any(map(len, data.local_holdout)):
        others["local_holdout"] = [held_out.tolist() for held_out in data.local_holdout]
    if (never := data.held_out_clients) is not None:
        others["held_out_clients"] = {
            "numbers": never.numbers,
            **({"names": never.names} if never.names else {}),
            "counts": [matrix.counts.astype(int).tolist() for matrix in data.matrices_of(never.partition)],
            "indices": [client.tolist() for client in never.partition.indices],
            "local_holdout": [held_out.tolist() for held_out in never.local_holdout],
        }
    write_dealt(run_dir, facts, data.partition, data.matrices, data.val, len(data.dataset.test), others)


@contextlib.contextmanager
def open_run(
    job: Job,
    make: Callable[[DictConfig, Path], Federation] = build,
    write: Callable[[Path, DictConfig, Federation], None] = write_partition,
) -> Iterator[Federation]:
    """Make the federation of a job, or restore it where the job resumes, and have signals stop it at a safe point.

    Torch's threads, the signals and the engine are put back or closed in the end, however it comes.

    Args:
        job: one that nobody else works at; its configuration is settled here.
        make: makes the federation of the settled configuration.
        write: writes what else is known before the first round; by default, who has which sample.

    Raises:
        FedFacetError, ValueError, TypeError: where a part refuses its arguments, or the checkpoint cannot be gone on with.
        Interrupted: if a signal has come; the state is saved.
    """
    config, threads = job.config, torch.get_num_threads()
    try:
        log.info("fedfacet %s: %s", __version__, typed(["python", *sys.argv]))
        saved = None
        if config.resume is not None:
            saved_at = checkpoint.asked_for(job.run_dir, config.resume)
            saved, saved_config = checkpoint.load(saved_at)
            settled, choice = configuration.carried_over(saved_config, saved_at)
            for name, value in settled.items():
                config[name] = value
            if "choice" in config.engine:  # of engine=auto
                config.engine.choice = choice
        settle(config)
        federation = make(config, job.run_dir)
        if federation.engine.trains_here:
            keep_freed_memory()
        if saved is not None:
            _check_sums(saved_config["engine"], config.engine)
            federation.restore(saved)
            checkpoint.make_last(saved_at)
        with contextlib.closing(federation.engine):
            federation.engine.share(configuration.plain(config))
            (job.run_dir / LIST).unlink(missing_ok=True)  # nothing may be written while it is there
            write(job.run_dir, config, federation)
            _write_run_folder(job.run_dir, config, job.overrides)
            before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a second Ctrl-C does: callbacks see to it
            try:
                with Interruption(federation.stop), _doubting(saved, federation):
                    yield federation
            finally:
                signal.signal(signal.SIGINT, before)
                with contextlib.suppress(OSError):  # of a full disk; without the list the files are read unverified
                    write_list(job.run_dir)
        log.info("Finished round %d.", federation.state.round)
    except Interrupted as stop:
        log.info("Stopped by %s after round %d.", signal.Signals(stop.signal).name, federation.state.round)
        raise
    finally:
        torch.set_num_threads(threads)  # the next job of this process has a choice of its own


@contextlib.contextmanager
def _doubting(saved: FederationState | None, federation: Federation) -> Iterator[None]:
    """Where the first round after a checkpoint fails, say that the checkpoint may be the reason."""
    try:
        yield
    except (FedFacetError, OSError):
        raise
    except Exception as error:
        if saved is None or federation.state is not saved:
            raise
        log.info("Failed.", exc_info=True)
        raise CheckpointError(
            f"Expected to go on after round {saved.round}, but the next one fails with {type(error).__name__} "
            f"({first_line(error)}): restore the code, settings and checkpoint that the run had; train.log has the traceback."
        ) from error


def _check_sums(*engines: Mapping[str, Any]) -> None:
    """Refuse to go on with a run by an engine that sums in another order than the one that it was started with."""
    trees = [engine.get("sums", "cohort") for engine in engines]
    if "tree" in trees and trees[0] != trees[1]:
        raise ConfigError(
            f"The run was started with engine.sums={trees[0]}, and engine.sums={trees[1]} adds up in another order: give "
            f"engine=distributed engine.sums={trees[0]}."
        )
    was, now = ("vectorized" in f"{engine['_target_']} {(engine.get('choice') or {}).get('engine')}" for engine in engines)
    if was != now:
        raise ConfigError(
            f"Expected {'engine=vectorized' if was else 'an engine that is exact to the last bit'}, as the run was started "
            f"with, but got {'one that adds up in another order' if was else 'vectorized'}: leave `engine` out."
        )


def _write_run_folder(run_dir: Path, config: DictConfig, overrides: Sequence[str]) -> None:
    """Write what is known before the first round: the resolved configuration, and the overrides for a resume."""
    settings = configuration.plain(config) | {"resume": None}
    settings["paths"]["output_dir"] = str(run_dir)  # what ${now:...} was, and a job of a sweep lies elsewhere
    _write(run_dir / ".hydra" / "overrides.yaml", sealed_list(overrides))
    _write(run_dir / "config.yaml", OmegaConf.to_yaml(settings))


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
