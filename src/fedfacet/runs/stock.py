"""What has become of the jobs of one command."""

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from fedfacet.config import is_complete, override_of
from fedfacet.config.sweeping import Sweep
from fedfacet.errors import FedFacetError
from fedfacet.runs.ending import command_name, same_command
from fedfacet.runs.lock import holder_of
from fedfacet.shell_words import typed

_MOST_NAMED = 20
_MOST_IN_A_TABLE = 100  # runs; reading one takes 30 ms, also where a finished sweep is started again

failures: dict[Path, str] = {}
"""Of the jobs that failed in this process while others went on: the run folder, and what was wrong."""


def take_stock(cells: Mapping[Path, int]) -> int:
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
        sweep_dir: in which each job has its run folder; ``None`` where the same command goes on with all of them.
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


def tell_results(run_dirs: Collection[Path]) -> None:
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
    from fedfacet.analysis.terminal import print_tables

    try:
        runs = [load_run(run_dir) for run_dir in run_dirs]
        rows, columns = keys_of(runs, (), ())
        table = make_table(runs, rows=rows, columns=columns, at="both").table()
    except FedFacetError:  # a run is damaged, or says nothing of accuracy, or they do not fit into one table
        return
    if len(list(table.rows)) <= _MOST_NAMED:
        title = "Test accuracy of the worst group in percent, mean ± standard deviation (seeds)"
        print_tables([replace(table, caption=title)])
