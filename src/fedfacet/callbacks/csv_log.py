"""The run's numbers as csv files."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.federation import Federation
from fedfacet.machine_memory import peak_memory
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.records import RoundResult
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.table import Table


class CsvLog(Callback):
    """A row per round in ``metrics.csv`` and in ``timing.csv``, and one per client in ``devices.csv`` where they have devices.

    Where every client has an epsilon of its own (``privacy=dp_sgd``), ``privacy.csv`` has a row of each at the end: how many
    steps were planned, with what probability a sample is in one, and the epsilon of all.

    ``metrics.csv`` holds deterministic columns only: two runs of the same seed give the same file. ``timing.csv`` holds
    seconds, peak memory and the engine. A resumed run refuses a file that does not begin with the rows that its checkpoint
    knows, and drops the rows after them.
    """

    def __init__(self, *, run_dir: Path, client_names: Sequence[str] = ()) -> None:
        self._names = client_names
        self.metrics = Table(run_dir / "metrics.csv")
        self.timing = Table(run_dir / "timing.csv", adapts=True)  # one begun by another version keeps its phases
        self._devices, self._privacy = run_dir / "devices.csv", run_dir / "privacy.csv"
        self._tables = (self.metrics, self.timing)

    def on_fit_start(self, federation: Federation) -> None:
        """Cut back what a killed run wrote after its last checkpoint."""
        for table in self._tables:
            table.cut_back(federation.state.round)
        if (devices := federation.find(SimulatedDevices)) is not None:
            _write(self._devices, devices.clock.table(), self._names)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Write what every client has spent."""
        private = federation.find(DifferentialPrivacy)
        if private is not None and (rows := private.accounting.table(federation.state)):
            _write(self._privacy, rows, self._names)

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Append a row to each file."""
        row = {"round": result.round, "cohort": " ".join(map(str, result.cohort)), "num_arrived": len(result.arrived)}
        self.metrics.append({**row, **result.metrics})
        self.timing.append(
            {
                "round": result.round,
                "seconds": round(sum(result.seconds.values()), 6),
                **{f"seconds/{phase}": round(seconds, 6) for phase, seconds in result.seconds.items()},
                "peak_memory_mb": round(peak_memory() / 2**20, 1),
                "engine": federation.engine.name,
            }
        )

    def state_dict(self) -> dict[str, Any]:
        """Return by what each file is known."""
        return {table.file.name: table.record() for table in self._tables}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse files that are not those of the run; see ``Table.take_up``."""
        for table in self._tables:
            table.take_up(state_dict.get(table.file.name, {}))


def _write(file: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Write a table of clients whole, in the place of the one that was there, with their names if they have some."""
    rows = [{**row, "name": names[row["client"]]} for row in rows] if names else rows
    with atomic_write(file) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, rows[0])
        writer.writeheader()
        writer.writerows(rows)
