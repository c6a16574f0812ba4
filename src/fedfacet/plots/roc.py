"""How well attacks tell members from others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.metrics.roc import Roc
from fedfacet.plots.style import COLOURS, DASHES, saved_figure, saved_panels

_INK = COLOURS
_GRID = 200


def plot_roc(rocs: Mapping[str, Sequence[Roc]], path: Path) -> None:
    """Draw the mean curve over victims of each attack into a PNG, on logarithmic axes, with the range over victims as a band.

    Dashes: an attack that knows nothing. Grey: false positive rates below one in as many others as the largest victim has,
    which cannot be shown.
    """
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    floor = min(1 / roc.num_others for of in rocs.values() for roc in of)
    rates = np.geomspace(floor, 1, _GRID)
    with saved_figure(path, 3.6, 3.0) as figure:
        axes = figure.subplots()
        for colour, (name, of) in zip(_INK * len(rocs), rocs.items(), strict=False):
            curves = np.array([np.interp(rates, roc.false_positives, roc.true_positives) for roc in of])
            if len(of) > 1:
                axes.fill_between(rates, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12, linewidth=0)
            axes.plot(rates, curves.mean(axis=0), color=colour, linewidth=1.2, label=name)
        axes.plot([floor / 3, 1], [floor / 3, 1], color="0.4", linestyle=DASHES, linewidth=0.8)
        axes.axvspan(floor / 3, floor, color="0.9", linewidth=0)
        axes.set(xscale="log", yscale="log", xlim=(floor / 3, 1), ylim=(floor / 3, 1.05))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.legend(loc="lower right")


def plot_exposure(rocs: Mapping[str, Sequence[Roc]], num_samples: Sequence[int], rates: Sequence[float], path: Path) -> None:
    """Draw each victim's AUC with its 95 % interval over the number of its samples into a PNG, a panel per attack.

    Filled: whole models. Open: parts of the model. Dashes: an attack that knows nothing.
    """
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    sizes = np.array(num_samples, dtype=np.float64)
    wide = sizes.max() > 5 * sizes.min()
    places = _apart(sizes, wide)

    def size(rows: int, columns: int) -> tuple[float, float]:
        return 0.8 + 2.4 * columns, 0.4 + 2.1 * rows

    with saved_panels(path, len(rocs), size, sharex=True, sharey=True) as (_, grid):
        for colour, axes, (name, of) in zip(_INK * len(rocs), grid, rocs.items(), strict=False):
            for roc, place, rate in zip(of, places, rates, strict=True):
                axes.plot([place, place], [roc.auc_low, roc.auc_high], color=colour, linewidth=0.8)
                axes.plot(place, roc.auc, "o", markersize=4, color=colour, markerfacecolor=colour if rate == 1 else "white")
            axes.axhline(0.5, color="0.4", linestyle=DASHES, linewidth=0.8)
            axes.set(title=name, xlabel="samples", xscale="log" if wide else "linear")
            axes.tick_params(labelbottom=True)
            if wide:
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in grid[::3]:
            axes.set_ylabel("AUC")


def _apart(sizes: NDArray[np.float64], wide: bool) -> NDArray[np.float64]:
    """Return where to draw each size, equal ones a little apart."""
    shift = np.zeros(len(sizes))
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        shift[same] = np.arange(len(same)) - (len(same) - 1) / 2
    return sizes * 1.03**shift if wide else sizes + 0.02 * sizes.max() * shift
