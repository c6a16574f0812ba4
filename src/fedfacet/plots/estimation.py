"""A picture of the triplets that clients disclosed over the true ones; Matplotlib is imported when it is drawn."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet.metrics.estimation import MEASURES, Triplets, measure_estimation
from fedfacet.plots.figure import BLUE, DASHES, saved_figure
from fedfacet.plots.run import MEASURES as TITLES

_SMALLEST, _ALL_CLIENTS = 14.0, 320.0  # areas of bubbles, in points squared
_ALIKE = 0.02


def plot_estimation(triplets: Triplets, path: Path) -> None:
    """Draw into a PNG what clients disclosed over the truth, a panel per measure; on the dashed line they are equal.

    Clients within 0.02 of each other share a bubble, whose area grows with their number. Above each panel stand the mean
    absolute error and the correlation over the clients.
    """
    error = measure_estimation(triplets)
    with saved_figure(path, 7.6, 3.1) as figure:
        for column, (axes, measure) in enumerate(zip(figure.subplots(1, 3), MEASURES, strict=True)):
            pairs = np.rint(np.stack([triplets.true[:, column], triplets.disclosed[:, column]], axis=1) / _ALIKE)
            cells = Counter(map(tuple, pairs.tolist()))
            axes.plot([0, 1], [0, 1], color="0.4", linewidth=0.9, linestyle=DASHES, zorder=1)
            sizes = [_SMALLEST + _ALL_CLIENTS * number / len(triplets.clients) for number in cells.values()]
            style: Any = {"color": BLUE, "alpha": 0.6, "edgecolor": "#003F63", "linewidth": 0.6, "zorder": 2, "clip_on": False}
            axes.scatter(*(_ALIKE * np.array(list(cells)).T), s=sizes, **style)
            correlation = error["correlation"][measure]
            correlated = "no correlation" if np.isnan(correlation) else f"correlation {correlation:.2f}"
            title = f"{TITLES[column]}\nmean error {error['mean_absolute_error'][measure]:.3f}, {correlated}"
            axes.set(title=title, xlabel="true", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal")
            axes.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
            if column == 0:
                axes.set_ylabel("disclosed by the client")
        figure.suptitle(
            f"{error['clients']} clients: distance between true and disclosed triplets {error['distance_mean']:.3f} on "
            f"average, {error['distance_max']:.3f} at most",
            fontsize=8,
        )
