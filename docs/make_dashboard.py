"""Draw the panels of docs/dashboard.md from runs on disk: ``python docs/make_dashboard.py RUNS docs/dashboard.png``."""

import csv
import sys
from pathlib import Path

import numpy as np

from fedfacet.analysis.runs import Run, find_runs
from fedfacet.plots.style import COLOURS, saved_figure

PANELS = (
    ("test/acc_worst_group", "test/acc_worst_group"),
    ("test/acc", "test/acc"),
    ("train/loss", "train/loss"),
    ("val/acc_worst_group", "val/acc_worst_group"),
    ("test/acc_group/y0_a1", "test/acc_group/*, one of them"),
)
"""A metric, and what heads its panel."""


def main(folder: Path, picture: Path) -> None:
    """Draw a line per group of runs, a band from its lowest to its highest seed, as W&B does, and who took part."""
    groups: dict[str, list[Run]] = {}
    for run in find_runs([folder]):
        groups.setdefault(f"{run.setting('selector')}-{run.setting('aggregator')}", []).append(run)
    with saved_figure(picture, 9, 4.4) as figure:
        axes = figure.subplots(2, 3).ravel()
        for axis, (metric, title) in zip(axes, PANELS, strict=False):
            for colour, (name, runs) in zip(COLOURS, sorted(groups.items()), strict=False):
                rounds, values = read(runs, metric)
                axis.plot(rounds, values.mean(axis=0), color=colour, label=name)
                axis.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
            axis.set(title=title, xlabel="round")
        axes[0].legend()
        counts = {name: participation(runs[0]) for name, runs in sorted(groups.items())}
        for place, (name, count) in enumerate(counts.items()):
            axes[5].bar(np.arange(len(count)) + 0.4 * place, count, width=0.4, color=COLOURS[place], label=name)
        axes[5].set(title="table clients: rounds, first seed", xlabel="client")


def read(runs: list[Run], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds in which a metric was measured, shape (R,), and its values, shape (seeds, R)."""
    lines = []
    for run in runs:
        with open(run.path / "metrics.csv", newline="", encoding="utf-8") as file:
            lines.append([(int(row["round"]), float(row[metric])) for row in csv.DictReader(file)])
    whole = np.array(lines)  # (seeds, rounds, 2)
    measured = ~np.isnan(whole[0, :, 1])
    return whole[0, measured, 0], whole[:, measured, 1]


def participation(run: Run) -> np.ndarray:
    """Return in how many rounds each client took part, up to the last one that did."""
    with open(run.path / "metrics.csv", newline="", encoding="utf-8") as file:
        cohorts = [[int(client) for client in row["cohort"].split()] for row in csv.DictReader(file)]
    return np.bincount([client for cohort in cohorts for client in cohort])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
