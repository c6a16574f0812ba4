"""How many clients hold which entries of a model."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.plots.style import saved_panels


def plot_holders(holders: Mapping[str, NDArray[np.float64]], num_clients: int, path: Path) -> None:
    """Draw a panel per tensor into a PNG: outputs downwards, inputs to the right, the darker the more clients hold it.

    ``holders`` has per tensor of two or more axes how many clients hold each entry; further axes are averaged.
    """
    with saved_panels(path, len(holders), lambda rows, columns: (1.2 + 2.3 * columns, 0.4 + 2.3 * rows)) as (figure, grid):
        for axes, (name, held) in zip(grid, holders.items(), strict=True):
            matrix = held.reshape(*held.shape[:2], -1).mean(axis=2)
            image = axes.imshow(matrix, cmap="Greys", vmin=0, vmax=num_clients, aspect="auto", interpolation="nearest")
            axes.set_title(name, fontsize=8)
            axes.set(xlabel="input", ylabel="output")
            axes.locator_params(integer=True)
        figure.colorbar(image, ax=figure.axes, label="clients that hold the entry", shrink=0.8)
