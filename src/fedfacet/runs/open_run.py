"""A run folder opened: everything is made, or taken up from the last checkpoint, and put away again afterwards."""

import contextlib
import functools
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig

from fedfacet import __version__
from fedfacet import config as configuration
from fedfacet.build import build, load_data, settle
from fedfacet.config.nodes import sealed_list, yaml_of
from fedfacet.errors import Interrupted
from fedfacet.federation import Federation
from fedfacet.parallel.processes import keep_freed_memory
from fedfacet.run_folder import check_sums, worked_at, write_partition
from fedfacet.runs.job import Job
from fedfacet.shell_words import typed
from fedfacet.storage import checkpoint
from fedfacet.storage.atomic_write import atomic_write

log = logging.getLogger("fedfacet.train")


def write_owners(run_dir: Path, config: DictConfig, federation: Federation) -> None:
    """Write who has which sample."""
    write_partition(run_dir, load_data(config))


@contextlib.contextmanager
def open_run(
    job: Job,
    make: Callable[[DictConfig, Path], Federation] = build,
    write: Callable[[Path, DictConfig, Federation], None] = write_owners,
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
            check_sums(saved_config["engine"], config.engine)
            federation.restore(saved)
            checkpoint.make_last(saved_at)
        with contextlib.closing(federation.engine):
            federation.engine.share(configuration.plain(config))
            if federation.engine.spans_processes:
                federation.engine.one_copy(functools.partial(load_data, config))

            def write_all() -> None:
                write(job.run_dir, config, federation)
                _write_run_folder(job.run_dir, config, job.overrides)

            with worked_at(job.run_dir, federation, write_all, saved):
                yield federation
        log.info("Finished round %d.", federation.state.round)
    except Interrupted as stop:
        log.info("Stopped by %s after round %d.", signal.Signals(stop.signal).name, federation.state.round)
        raise
    finally:
        torch.set_num_threads(threads)  # the next job of this process has a choice of its own


def _write_run_folder(run_dir: Path, config: DictConfig, overrides: Sequence[str]) -> None:
    """Write what is known before the first round: the resolved configuration, and the overrides for a resume."""
    settings = configuration.plain(config) | {"resume": None}
    settings["paths"]["output_dir"] = str(run_dir)  # what ${now:...} was, and a job of a sweep lies elsewhere
    _write(run_dir / ".hydra" / "overrides.yaml", sealed_list(overrides))
    _write(run_dir / "config.yaml", yaml_of(settings))


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
