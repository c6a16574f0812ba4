"""The command ``train``: its whole command line is checked, then Hydra runs its jobs."""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from fedfacet import config as configuration
from fedfacet.errors import FedFacetError
from fedfacet.runs.ending import command_name, leave, refuse
from fedfacet.runs.job import Job
from fedfacet.runs.jobs import check, run_job
from fedfacet.runs.processes import check_alone, serve
from fedfacet.runs.stock import failures, name_failures, take_stock


def run_command(train: Callable[[Job], None]) -> None:
    """Check the command line, have ``train`` run each of its jobs, and exit with a status where something is wrong.

    Args:
        train: runs one job in its folder.
    """
    signal.signal(signal.SIGINT, leave)
    try:
        if (shown := configuration.shown("train", sys.argv)) is not None:
            print(shown, end="")
            return
        sys.argv, composed = configuration.preflight("train", sys.argv)
        jobs = [Job(config, Path(os.path.abspath(run_dir)), ()) for config, run_dir in composed]
        cells = {job.run_dir: job.config.federation.rounds for job in jobs if job.is_new_cell}
        if cells:
            check_alone(jobs[0].config)
            finished = [run_dir for run_dir, rounds in cells.items() if configuration.is_complete(run_dir, rounds)]
            print(f"{len(cells)} cells in {composed[0][1].parent}; finished already, and skipped: {len(finished)}.", flush=True)
            if len(finished) == len(cells):
                return
        else:
            served = [serve(job.config) for job in jobs]
            if any(served):
                return
            for config, run_dir in composed:
                check(config, run_dir)
    except (FedFacetError, ValueError, TypeError) as error:
        refuse(error)

    def task(config: DictConfig) -> float | None:
        own = HydraConfig.get()
        config = configuration.finalized(config, own.overrides.task, own.runtime.choices)
        # Of what is Hydra's own, where the options of others lie is what a resume must know.
        searched = [override for override in own.overrides.hydra if override.startswith("hydra.searchpath=")]
        job = Job(config, Path(own.runtime.output_dir), [*searched, *own.overrides.task])
        # Another launcher's jobs lie in other processes.
        return run_job(
            job, train, others_go_on=own.mode is RunMode.MULTIRUN and own.launcher._target_.endswith(".BasicLauncher")
        )

    start = hydra.main(version_base="1.3", config_path=str(configuration.conf_dir()), config_name="train")(task)
    if {"-h", "--help"} & set(sys.argv):
        _print_wrapped(start)
    else:
        start()
    if cells:
        sys.exit(take_stock(cells))
    if failures:
        sys.exit(name_failures(failures))


def _print_wrapped(tell_help: Callable[[], None]) -> None:
    """Print what Hydra says for --help, with the groups' lists of options folded to the terminal's width."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        tell_help()
    with contextlib.suppress(BrokenPipeError):  # `--help | head`
        width = min(max(shutil.get_terminal_size((128, 24)).columns, 80), 128)
        for line in said.getvalue().replace("python src/train.py", command_name()).splitlines():
            is_list = re.match(r"\w+: \w+,", line)
            print(textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) if is_list else line)
