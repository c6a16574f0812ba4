"""What has become of the jobs of one command."""

import sys
from collections.abc import Mapping
from pathlib import Path

from fedfacet.config import is_complete
from fedfacet.runs.lock import holder_of

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


def name_failures(faults: Mapping[Path, str]) -> int:
    """Say which jobs are not finished, and why; return the exit status."""
    for run_dir, fault in faults.items():
        print(f"not finished: {run_dir}: {fault}", file=sys.stderr)
    return 1 if faults else 0
