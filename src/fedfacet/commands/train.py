"""The command ``train``: it checks its whole command line, runs the jobs, and reports what has become of them."""

import argparse
import contextlib
import io
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from fedfacet import __version__
from fedfacet import config as configuration
from fedfacet.config import is_complete, override_of
from fedfacet.config.composition import BASE
from fedfacet.config.sweeping import Sweep
from fedfacet.entry import is_printed_here
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.runs.ending import command_name, failed_if_stopped, refuse, same_command, short_in_a_sentence
from fedfacet.runs.job import ETA, Job, failures
from fedfacet.runs.jobs import check, check_alone, check_data, check_started, launch, run_job, serve
from fedfacet.runs.sweep_workers import Outcome, num_workers, run_workers
from fedfacet.shell_words import typed
from fedfacet.storage.lock import holder_of
from fedfacet.waiting import waiting

Jobs: TypeAlias = Sequence[tuple[DictConfig, Path]]
"""Configuration and run folder of each job."""

_MOST_NAMED = 20
_MOST_IN_A_TABLE = 100  # runs; reading one takes 30 ms, also where a finished sweep is started again


class Shown(logging.Handler):
    """Shows what the check of a command line warns of, and remembers it: a job warns of it again, in its log only."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning as a process without a log does."""
        if self.is_new(record) and logging.lastResort is not None:
            logging.lastResort.handle(record)
        self._seen.add((record.name, record.getMessage()))

    def is_new(self, record: logging.LogRecord) -> bool:
        """Tell whether a terminal has not shown it."""
        return (record.name, record.getMessage()) not in self._seen


_shown = Shown()


def summarise(cells: Mapping[Path, int]) -> int:
    """Say what has become of a sweep's cells, in whichever process each was run; return the exit status.

    Args:
        cells: run folder -> how many rounds.
    """
    left = [run_dir for run_dir, rounds in cells.items() if not is_complete(run_dir, rounds)]
    elsewhere = [run_dir for run_dir in left if run_dir not in failures and holder_of(run_dir)]
    failed = [run_dir for run_dir in left if run_dir not in elsewhere]
    underway = f", {len(elsewhere)} under way in other processes" if elsewhere else ""
    print(f"{len(cells) - len(left)} of {len(cells)} cells are finished{underway}.")
    return name_failures({run_dir: failures.get(run_dir, "see its train.log") for run_dir in failed})


def name_left(jobs: Sweep, begun: int, sweep_dir: Path | None) -> None:
    """Say which jobs of a sweep that was stopped have not begun, and the commands that run them, unless a sweeper draws them.

    Args:
        jobs: of the sweep.
        begun: how many have; they begin in order.
        sweep_dir: in which each job has its run folder; ``None`` where the same command resumes all of them.
    """
    if not jobs.are_known:
        print("The same command goes on where the sweeper stores its study, and begins anew where not.", file=sys.stderr)
        return
    left = range(begun, len(jobs))
    if not left:
        return
    print(f"{len(left)} of {len(jobs)} jobs have not begun:", file=sys.stderr)
    for number in left[:_MOST_NAMED]:
        overrides = [override for override in jobs.overrides_of(number) if not override.startswith("sweep=")]
        if sweep_dir is None:
            print(f"  {' '.join(overrides)}", file=sys.stderr)
            continue
        where = override_of("paths.output_dir", sweep_dir / jobs[number][1].name)
        overrides = [*(one for one in overrides if not one.startswith("hydra.") or one.startswith("hydra.searchpath=")), where]
        print(f"  {same_command()} {typed(overrides)}", file=sys.stderr)
    if len(left) > _MOST_NAMED:
        print(f"  and {len(left) - _MOST_NAMED} more.", file=sys.stderr)


def name_failures(faults: Mapping[Path, str]) -> int:
    """Say which jobs are not finished, and why; return the exit status."""
    for run_dir, fault in faults.items():
        print(f"not finished: {run_dir}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def print_sweep(run_dirs: Collection[Path]) -> None:
    """Print a table of several runs, and say how to make more of them."""
    done = [run_dir for run_dir in run_dirs if (run_dir / "summary.json").is_file()]
    if len(done) < 2:
        return
    folder = os.path.commonpath(done)
    report = re.sub(r"train(\.py)?$", r"report\1", command_name())
    shown = typed([os.path.relpath(folder) if Path(folder).is_relative_to(Path.cwd()) else folder])
    if len(done) <= _MOST_IN_A_TABLE:
        _print_table(done)
    print(f"a table:                 {report} {shown}")
    print(f"a page for the browser:  {report} {shown} --html report.html")


def _print_table(run_dirs: Collection[Path]) -> None:
    """Print the worst-group accuracy of what the runs differ in but the seed, unless they have none or there is too much."""
    from fedfacet.analysis.runs import load_run
    from fedfacet.analysis.study import keys_of
    from fedfacet.analysis.tables import make_table
    from fedfacet.commands.output import print_tables

    try:
        runs = [load_run(run_dir) for run_dir in run_dirs]
        rows, columns = keys_of(runs, (), ())
        table = make_table(runs, rows=rows, columns=columns, at="both").table()
    except FedFacetError:  # a run is damaged, or says nothing of accuracy, or they do not fit into one table
        return
    if len(list(table.rows)) <= _MOST_NAMED:
        title = "Test accuracy of the worst group in percent, mean ± standard deviation (seeds)"
        print_tables([replace(table, caption=title)])


def run_command(train: Callable[[Job], None]) -> None:
    """Check the command line, have ``train`` run each of its jobs, and exit with a status where something is wrong.

    Args:
        train: runs one job in its folder.
    """
    logging.raiseExceptions = False  # of a full disk the run's tables tell in a sentence, the log file in tracebacks
    workers = 1
    if "--version" in sys.argv[1:]:
        print(f"fedfacet {__version__}")
        return
    try:
        if (shown := configuration.shown("train", sys.argv)) is not None:
            print(shown, end="")
            return
        with waiting(f"fedfacet {__version__} checks the settings"):
            sys.argv, jobs = configuration.preflight("train", sys.argv)
            looked_at = jobs.looked_at if isinstance(jobs, Sweep) else jobs
        are_drawn = isinstance(jobs, Sweep) and not jobs.are_known
        are_cells = any(configuration.is_cell(config) and config.resume is None for config, _ in looked_at)
        if are_cells:
            workers = _check_cells(jobs, looked_at, are_drawn=are_drawn)
        elif _are_served(jobs, looked_at):
            return
    except (FedFacetError, ValueError, TypeError) as error:
        if explained := configuration.ended_before(error, sys.argv[1:]):
            print(explained)
            return
        refuse(error, aloud=is_printed_here(error))
    reached: dict[Path, int] = {}
    eta = ETA(jobs.total if isinstance(jobs, Sweep) else len(jobs), workers=workers)
    if workers > 1:
        its_reached, its_failures = run_workers(partial(_work, train, sys.argv, eta, jobs), workers)
        reached |= its_reached
        failures.update(its_failures)
    else:
        _run_here(all_jobs(train, reached, eta, jobs, is_worker=False), jobs, reached, are_cells=are_cells)
    if are_cells:
        known = are_drawn or len(reached | failures) >= len(jobs)  # another launcher's processes have reached others
        planned = reached if known else {Path(os.path.abspath(where)): config.federation.rounds for config, where in jobs}
        status = summarise(planned) | name_failures({job: fault for job, fault in failures.items() if job not in planned})
        print_sweep(planned)
        sys.exit(status)
    print_sweep(reached)
    if failures:
        sys.exit(name_failures(failures))


def _check_cells(jobs: Jobs, looked_at: Jobs, *, are_drawn: bool) -> int:
    """Refuse cells that cannot run; return how many processes run them."""
    config, run_dir = looked_at[0]
    check_alone(config)
    if are_drawn and config.sweep.workers != 1:
        raise ConfigError(
            "Expected `sweep.workers=1` where the sweeper draws the jobs, "
            f"but got {config.sweep.workers}: leave it out, or search with tune.py in several terminals."
        )
    workers = num_workers(config.sweep.workers, len(jobs))
    with waiting("looks for the data of all cells"):
        check_data(looked_at)
    if not are_drawn:
        print(f"{len(jobs)} cells in {run_dir.parent}.", flush=True)
    return workers


def _are_served(jobs: Jobs, looked_at: Jobs) -> bool:
    """Refuse jobs that cannot run; tell whether this process has served another that runs them."""
    for config, _ in looked_at:
        check_started(config)
        if config.sweep.workers != 1:
            raise ConfigError("Expected `sweep.workers` with a sweep, but got it without: add sweep=cells and -m.")
    if any(serve(config) for config, _ in looked_at[:1]):
        for number in range(1, len(jobs)):
            serve(jobs[number][0])
        return True
    with waiting("loads libraries and data"):
        logging.root.addHandler(_shown)
        try:
            for config, run_dir in looked_at:
                check(config, run_dir)
        finally:
            logging.root.removeHandler(_shown)
    return False


def _run_here(start: Callable[[], None], jobs: Jobs, reached: Mapping[Path, int], *, are_cells: bool) -> None:
    """Run the jobs in this process; where a signal stops a sweep, name those that have not begun."""
    if {"-h", "--help"} & set(sys.argv):
        _print_wrapped(start)
        return
    try:
        start()
    except SystemExit as stop:
        if isinstance(jobs, Sweep) and stop.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            name_left(jobs, len(reached), None if are_cells else next(iter(reached)).parent)
        raise


def all_jobs(
    train: Callable[[Job], None],
    reached: dict[Path, int],
    eta: ETA,
    jobs: Jobs,
    *,
    is_worker: bool,
    first: int = 0,
) -> Callable[[], None]:
    """Return what runs the jobs of the command line.

    Args:
        train: runs one job in its folder.
        reached: in which the rounds of each are noted.
        eta: of all jobs.
        jobs: of the command line, as ``preflight`` returns them.
        is_worker: as for ``run_job``.
        first: the number of the first job among those that ``eta`` counts.
    """

    def task(config: DictConfig) -> float | None:
        for handler in logging.root.handlers:
            if type(handler) is logging.StreamHandler:  # the terminal; files have everything
                handler.addFilter(_shown.is_new)
        own = HydraConfig.get()
        # Of what is Hydra's own, where the options of others lie is what a resume must know.
        searched = [override for override in own.overrides.hydra if override.startswith("hydra.searchpath=")]
        overrides = [*searched, *own.overrides.task]
        job = Job(
            configuration.finalized(config, own.overrides.task, own.runtime.choices), Path(own.runtime.output_dir), overrides
        )
        reached[job.run_dir] = job.config.federation.rounds
        is_one_of_many = own.mode is RunMode.MULTIRUN
        with short_in_a_sentence(), failed_if_stopped(own.sweeper, own.overrides.task):
            return run_job(
                job,
                train,
                verify=partial(configuration.check_job, config, own.runtime.choices, overrides) if is_one_of_many else None,
                # Another launcher's jobs lie in other processes.
                others_go_on=is_one_of_many and own.launcher._target_.endswith(".BasicLauncher"),
                eta=eta,
                number=first + own.job.num if is_one_of_many else 0,
                is_worker=is_worker,
            )

    for module in ("optuna", r"hydra_plugins\.hydra_optuna_sweeper"):  # whose settings Optuna will not know any more some day
        warnings.filterwarnings("ignore", category=FutureWarning, module=module)
    _accept_any_help()
    main = hydra.main(config_path=str(configuration.conf_dir()), config_name="train", **BASE)
    return partial(launch, jobs, task, main(task))


def _accept_any_help() -> None:
    """Let Hydra 1.3 make its parser on Python 3.14, which looks into a help text that Hydra computes only when it is read.

    Hydra 1.4 needs none of this (github.com/facebookresearch/hydra/issues/3121).
    """
    add = argparse.ArgumentParser.add_argument

    def add_argument(*args: Any, help: object = None, **settings: Any) -> argparse.Action:
        return add(*args, help=help if isinstance(help, str) else None, **settings)

    if sys.version_info >= (3, 14):
        argparse.ArgumentParser.add_argument = add_argument  # type: ignore[method-assign]


def _work(train: Callable[[Job], None], argv: Sequence[str], eta: ETA, jobs: Jobs) -> Outcome:
    """Run the jobs of a checked command line in one of the processes of ``sweep.workers``."""
    logging.raiseExceptions = False
    sys.argv = list(argv)
    reached: dict[Path, int] = {}
    all_jobs(train, reached, eta, jobs, is_worker=True)()
    return reached, failures


def _print_wrapped(print_help: Callable[[], None]) -> None:
    """Print what Hydra says for --help, folded to the terminal's width; groups' lists of options are as wide as it is."""
    from fedfacet.terminal import filled

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        print_help()
    width = min(max(shutil.get_terminal_size((128, 24)).columns, 40), 128)
    explained = configuration.purposes()
    for line in printed.getvalue().replace("python src/train.py", command_name()).splitlines():
        group, _, options = line.partition(": ")
        print(filled(f"{group}: {explained[group]}" if explained.get(group) else line, width))
        if explained.get(group):
            print(textwrap.fill(options, width, initial_indent=" " * 4, subsequent_indent=" " * 4, break_long_words=False))
