"""The run's numbers as csv files."""

import csv
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet.callbacks.base import Callback
from fedfacet.types import RoundResult
from fedfacet.whole_file import written_whole

if TYPE_CHECKING:
    from fedfacet.federation import Federation


class CsvLog(Callback):
    """A row per round in ``metrics.csv`` and in ``timing.csv``.

    ``metrics.csv`` holds deterministic columns only: two runs of the same seed give the same file. Seconds, peak memory and
    the engine go to ``timing.csv``. When a run is resumed, both are first cut back to the checkpoint's round.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, *, run_dir: Path) -> None:
        self.metrics_file = run_dir / "metrics.csv"
        self.timing_file = run_dir / "timing.csv"
        self._columns: dict[Path, list[str]] = {}

    def on_fit_start(self, federation: "Federation") -> None:
        """Cut back what a killed run wrote after its last checkpoint."""
        for file in (self.metrics_file, self.timing_file):
            _cut_back(file, federation.state.round)

    def on_round_end(self, federation: "Federation", result: RoundResult) -> None:
        """Append a row to each file."""
        row = {
            "round": result.round,
            "cohort": " ".join(map(str, result.cohort)),
            "num_arrived": len(result.arrived),
            **result.metrics,
        }
        self._append(self.metrics_file, row)
        # ru_maxrss is in KiB on Linux and in bytes on macOS.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        timing = {
            "round": result.round,
            "seconds": round(sum(result.seconds.values()), 6),
            **{f"seconds/{phase}": round(seconds, 6) for phase, seconds in result.seconds.items()},
            "peak_memory_mb": round(peak, 1),
            "engine": federation.engine.name,
        }
        self._append(self.timing_file, timing)

    def _append(self, file: Path, row: Mapping[str, Any]) -> None:
        with open(file, "a", newline="") as target:
            writer = csv.writer(target, lineterminator="\n")
            if target.tell() == 0:
                writer.writerow(row)
                self._columns[file] = list(row)
            elif file not in self._columns:
                self._columns[file] = _header(file)
            if file == self.timing_file:  # one begun by another version keeps its phases
                row = {column: row.get(column, "") for column in self._columns[file]}
            if self._columns[file] != list(row):
                raise ValueError(
                    f"Expected the columns {self._columns[file]} in every round, but got {list(row)}: metrics have fixed names."
                )
            writer.writerow(row.values())


def _header(file: Path) -> list[str]:
    with open(file, newline="") as existing:
        return next(csv.reader(existing))


def _cut_back(file: Path, last_round: int) -> None:
    if not file.exists():
        return
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines[1:] if line.endswith("\n") and int(line.split(",", 1)[0]) <= last_round]
    with written_whole(file) as shortened:
        shortened.write_text("".join(lines[:1] + kept) if last_round else "")
