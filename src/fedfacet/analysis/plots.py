"""The pictures of a run: who holds what, how training went, who took part.

Matplotlib is imported when a picture is drawn, not before, and through its objects only: no window, no global figure. Every file
is written whole or not at all.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfacet.heterogeneity import InteractionMatrix, measure_federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TYPES = ("CI", "AI", "SC", "none")
"""The kinds of client in the order in which pictures show them."""

_TYPE_COLOURS = {"CI": "#EEDD88", "AI": "#BBDDCC", "SC": "#D6C3DE", "none": "#E4E4E4"}
# Okabe and Ito's palette, which colour-blind readers can tell apart: a hue per class, a shade of it per attribute value.
_CLASS_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LABELLED_GROUPS = 24
_STYLE = {"font.size": 8, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def plot_partition(
    matrices: Sequence[InteractionMatrix],
    path: Path,
    *,
    class_names: Sequence[str] | None = None,
    attribute_names: Sequence[str] | None = None,
) -> None:
    """Draw what every client holds, and the six measures of the federation (FedDiverse, arXiv:2504.11216, figure 3).

    On the left a bar per client in the order of ids, stacked by (class, attribute) cell; the strip beneath it shows which of the
    client's three measures is largest. On the right the measures of the pooled data and their means over the clients.

    Args:
        matrices: the clients', all of one shape (Y, A).
        path: of the PNG; its folder is made if need be.
        class_names: Y names; ``None`` calls them y = 0, 1, ...
        attribute_names: A names; ``None`` calls them a = 0, 1, ...
    """
    num_clients = len(matrices)
    with _figure(path, (7.6 + max(0.0, 0.035 * (num_clients - 30)), 3.4)) as figure:
        bars, measures = figure.subplots(
            1, 2, width_ratios=(max(5.0, 0.06 * num_clients + 2.6), 1.9), gridspec_kw={"wspace": 0.06}
        )
        _draw_clients(bars, matrices, class_names, attribute_names)
        _draw_measures(measures, matrices)


def plot_curves(metrics_csv: Path, path: Path) -> None:
    """Draw a run's accuracies and training loss by round.

    Solid lines are the test set, dashed ones the validation set. A dotted vertical line marks the best round by validation: the
    highest worst-group accuracy, ties by average, then the earliest.

    Args:
        metrics_csv: as ``CsvLog`` writes it, with at least one row. Columns that are not there are not drawn.
        path: of the PNG; its folder is made if need be.
    """
    with open(metrics_csv, newline="") as source:
        rows = list(csv.DictReader(source))
    curves = {
        name: np.array([float(row[name] or "nan") for row in rows])
        for name in rows[0]
        if name == "round" or name.startswith(("test/", "val/", "train/"))
    }
    rounds = curves["round"]
    with _figure(path, (7.6, 3.4)) as figure:
        accuracy, loss = figure.subplots(1, 2, width_ratios=(3, 1.6))
        groups = [name.rpartition("/")[2] for name in curves if name.startswith("test/acc_group/")]
        colours = _group_colours(*_shape(groups))
        lines: dict[str, dict[str, object]] = {
            "acc": {"label": "average", "color": "black", "linewidth": 1.8},
            "acc_worst_group": {"label": "worst group", "color": "#E69F00", "linewidth": 1.8},
        }
        thin = {
            f"acc_group/{key}": {"label": _group_name(key), "color": colour, "linewidth": 0.7}
            for key, colour in zip(groups, colours, strict=True)
        }
        for split, dashes in (("val", (0, (3, 1.5))), ("test", "-")):
            # Groups are drawn first, beneath the two lines that matter, and on the test set only: dashes of all would hide it.
            for name, style in ((thin if split == "test" else {}) | lines).items():
                label = {"label": style["label"]} if split == "test" else {"label": None}
                _line(accuracy, rounds, 100 * curves.get(f"{split}/{name}", np.full(len(rounds), np.nan)), linestyle=dashes, **style | label)
        _line(loss, rounds, curves.get("train/loss", np.full(len(rounds), np.nan)), color="black", linewidth=1.2)
        _mark_best(accuracy, loss, curves)
        accuracy.set(title="Accuracy (solid: test, dashed: validation)", xlabel="round", ylabel="accuracy (%)", ylim=(-2, 102))
        loss.set(title="Training loss of the round's clients", xlabel="round", ylabel="mean cross entropy")
        loss.set_ylim(bottom=0)
        handles, labels = accuracy.get_legend_handles_labels()
        if len(labels) <= _LABELLED_GROUPS:
            figure.legend(handles, labels, loc="outside right center")
