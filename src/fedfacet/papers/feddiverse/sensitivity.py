"""FedDiverse's figure 4: how well clients estimate their triplets, over a grid of three settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.notes import beside_the_seed
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import check_seeds
from fedfacet.analysis.tables import cell_over_seeds
from fedfacet.errors import ConfigError
from fedfacet.plots.style import VERMILION, saved_figure

METRIC = "heterogeneity_error/distance_max"
"""The paper minimises the largest distance of a client's estimated triplet from its true one."""

AXES = {
    "heterogeneity.q": (0.1, 0.3, 0.5, 0.7, 0.9),
    "heterogeneity.bias_steps": (5, 25, 50, 75, 100),
    "heterogeneity.attribute_steps": (5, 25, 50, 75, 100),
}
"""The paper's grid: panels, rows and columns of the picture."""

_NAMES = {
    "heterogeneity.q": "q",
    "heterogeneity.bias_steps": "steps of the biased model",
    "heterogeneity.attribute_steps": "steps of the attribute classifier",
    METRIC: "largest distance of a client",
    "heterogeneity_error/distance_mean": "mean distance",
}


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """A metric over a grid of three settings.

    ``axes`` maps a setting to its ascending values: panels, rows and columns of the picture. ``means`` over seeds have the
    grid's shape, NaN where no run has finished. ``federation`` is data set and partition. ``missing`` is how many cells have no
    finished run, ``differing`` are the settings, seed apart, in which runs of one cell differ.
    """

    axes: Mapping[str, Sequence[float]]
    means: NDArray[np.float64]
    federation: str
    metric: str
    missing: int
    differing: Sequence[str]

    @property
    def best(self) -> dict[str, float]:
        """The settings with the smallest value, the first of them where several have it."""
        position = np.unravel_index(np.nanargmin(self.means), self.means.shape)
        return {name: values[int(index)] for (name, values), index in zip(self.axes.items(), position, strict=True)}

    def __str__(self) -> str:
        """Say what came out."""
        at = ", ".join(f"{name}={value:g}" for name, value in self.best.items())
        if alike := int((self.means == np.nanmin(self.means)).sum()) - 1:
            at += f" and at {alike} more"
        missing = f"; missing are {self.missing} of {self.means.size} cells" if self.missing else ""
        mixed = f"; cells average runs that differ in {', '.join(self.differing)}" if self.differing else ""
        return f"smallest `{self.metric}` on {self.federation}: {np.nanmin(self.means):.4f} at {at}{missing}{mixed}"


def measure_sensitivity(runs: Sequence[Run], *, metric: str = METRIC, where: Mapping[str, str] | None = None) -> Sensitivity:
    """Return a metric, to be made small, over the paper's grid and over further values that runs have.

    Source: FedDiverse (arXiv:2504.11216), appendix D and figure 4.

    Counted are finished runs with the settings ``where``; those whose clients did not estimate their triplets may be among
    them. ``metric`` is as a run's summary names it.

    Raises:
        ConfigError: if no run is to be counted or on the paper's grid, they are of several federations, or a cell holds a seed
            twice.
    """
    wanted = {"heterogeneity": "estimated", **(where or {})}
    found = [run for run in runs if run.finished and metric in run.at("last") and run.fits(wanted)]
    if not any(math.isfinite(run.at("last")[metric]) for run in found):
        raise ConfigError(
            f"Expected finished runs whose clients estimate their triplets, but none of {len(runs)} runs has `{metric}`: run "
            "sweep=sensitivity."
        )
    federations = sorted({f"{run.setting('dataset')} {run.setting('partition')}" for run in found})
    if len(federations) > 1:
        raise ConfigError(
            f"Expected runs of one federation, but got {', '.join(federations)}: choose one with --where dataset=NAME or "
            "--where partition=NAME."
        )
    cells: dict[tuple[float, ...], list[Run]] = {}
    for run in sorted(found, key=lambda run: run.seed):
        cells.setdefault(tuple(float(str(run.setting(name))) for name in AXES), []).append(run)
    for place, members in cells.items():
        check_seeds(" / ".join(f"{value:g}" for value in place), members)
    if not any(all(value in axis for value, axis in zip(place, AXES.values(), strict=True)) for place in cells):
        raise ConfigError(
            f"Expected runs of the grid over {', '.join(AXES)}, but none of {len(runs)} runs has its values of them all: run "
            "sweep=sensitivity."
        )
    values = [sorted({*axis, *(place[number] for place in cells)}) for number, axis in enumerate(AXES.values())]
    grid = list(itertools.product(*values))
    means = [cell_over_seeds(cells.get(place, []), metric, "last", percent=False, std="population").mean for place in grid]
    return Sensitivity(
        axes=dict(zip(AXES, values, strict=True)),
        means=np.reshape(means, [len(axis) for axis in values]),
        federation=federations[0],
        metric=metric,
        missing=sum(place not in cells for place in grid),
        differing=sorted({key for members in cells.values() for key in beside_the_seed(members)}),
    )


def plot_sensitivity(sensitivity: Sensitivity, path: Path) -> None:
    """Draw a map per value of q: small values are light, the smallest (all of them) framed, a cross is a missing run."""
    (panel, panels), (row, rows), (column, columns) = sensitivity.axes.items()
    least, most = float(np.nanmin(sensitivity.means)), float(np.nanmax(sensitivity.means))
    # A single value has no range, so it gets the light end of a scale that is made up.
    top = most if most > least else least + max(0.1, 0.1 * abs(least))
    with saved_figure(path, 1.1 + 0.36 * len(panels) * (len(columns) + 0.6), 1.4 + 0.3 * len(rows)) as figure:
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for value, means, axes in zip(panels, sensitivity.means, all_axes, strict=True):
            image = axes.imshow(means, cmap="YlGnBu", vmin=least, vmax=top, origin="lower", aspect="auto")
            for (y, x), mean in np.ndenumerate(means):
                dark = not math.isnan(mean) and mean - least > 0.55 * (most - least)
                text = "×" if math.isnan(mean) else f"{mean:.2f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
                if mean == least:
                    frame = ((x - 0.5, x + 0.5, x + 0.5, x - 0.5, x - 0.5), (y - 0.5, y - 0.5, y + 0.5, y + 0.5, y - 0.5))
                    axes.plot(*frame, color=VERMILION, linewidth=1.8, clip_on=False, zorder=3)
            axes.set_title(f"{_NAMES.get(panel, panel)} = {value:g}")
            axes.set_xticks(range(len(columns)), [f"{tick:g}" for tick in columns])
            axes.set_yticks(range(len(rows)), [f"{tick:g}" for tick in rows])
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(-0.5, len(rows) - 0.5)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        all_axes[0].set_ylabel(_NAMES.get(row, row))
        figure.supxlabel(_NAMES.get(column, column), fontsize="medium")
        figure.colorbar(image, ax=all_axes, label=_NAMES.get(sensitivity.metric, sensitivity.metric), aspect=15, pad=0.01)
