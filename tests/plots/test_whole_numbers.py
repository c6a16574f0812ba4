"""Rounds and places in a layer are counted: no tick of a short run, or of a small layer, lies between two of them."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedfacet.plots.curves import Band, plot_bands
from fedfacet.plots.holders import plot_holders
from fedfacet.plots.membership import plot_membership


def bands(folder):
    plot_bands(
        {"digits": [Band("uniform", *np.array([[1, 2, 3], *[[0.1, 0.2, 0.3]] * 3]))]}, "accuracy", folder / "picture.png"
    )


def membership(folder):
    rows = ["round,membership/auc_loss,membership/auc_loss_low,membership/auc_loss_high", "1,.5,.4,.6", "2,.5,.4,.6"]
    (folder / "metrics.csv").write_text("\n".join(rows))
    plot_membership(folder / "metrics.csv", ["loss"], folder / "picture.png")


def holders(folder):
    plot_holders({"head.weight": np.ones((2, 3))}, 4, folder / "picture.png")


@pytest.mark.parametrize("draw", [bands, membership, holders])
def test_ticks_are_whole_numbers(draw, tmp_path, monkeypatch):
    ticks, save = [], Figure.savefig

    def saved(figure, *arguments, **options):
        axes = figure.axes[0]
        ticks.extend(axes.get_xticks())
        if draw is holders:
            ticks.extend(axes.get_yticks())
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    draw(tmp_path)
    assert len(ticks) > 1
    assert all(tick == int(tick) for tick in ticks)
