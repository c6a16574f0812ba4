"""Accuracy against gaps between groups."""

from collections.abc import Sequence
from pathlib import Path

from fedfacet.plots.figure import BLUE, ORANGE, saved_figure
from fedfacet.storage.run_files import rows_of


def plot_fairness(metrics_csv: Path, split: str, gaps: Sequence[str], path: Path) -> None:
    """Draw the model's accuracy over each gap into a PNG, a point per measured round, joined in order.

    The last round is filled. Up and to the left is better.
    """
    rows = [row for row in rows_of(metrics_csv) if row.get(f"{split}/fair/{gaps[0]}", "") not in ("", "nan")]
    with saved_figure(path, 0.6 + 1.7 * len(gaps), 2.3) as figure:
        grid = figure.subplots(1, len(gaps), sharey=True)
        for axes, gap in zip(grid, gaps, strict=True):
            points = [(float(row[f"{split}/fair/{gap}"]), 100 * float(row[f"{split}/acc"])) for row in rows]
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes.plot(x, y, color=BLUE, linewidth=0.6, alpha=0.5)
            axes.plot(x, y, "o", color=BLUE, markersize=3, markerfacecolor="white", markeredgewidth=0.6)
            axes.plot(x[-1:], y[-1:], "o", color=ORANGE, markersize=5)
            axes.set(xlabel=gap.replace("_", " "), xlim=(0, None))
            axes.locator_params(axis="x", nbins=3)
        grid[0].set_ylabel(f"accuracy on {split}, %")
