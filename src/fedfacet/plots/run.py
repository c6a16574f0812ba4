"""The pictures of a run: who holds what, how training went, who took part."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.heterogeneity import InteractionMatrices, InteractionMatrix, measure_federation
from fedfacet.metrics.direction import lower_is_better, main_metric
from fedfacet.metrics.group_names import group_names
from fedfacet.plots import crowd
from fedfacet.plots.style import BLUE, COLOURS, DASHES, GREEN, VERMILION, client_labels, saved_figure
from fedfacet.storage.run_files import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TYPES = ("CI", "AI", "SC", "none")  # the types of client in the order in which pictures and tables show them
TYPE_COLOURS = {"CI": "#F5E5A5", "AI": "#C3E3D5", "SC": "#DCCBE6", "none": "#E6E6E6"}  # the background of each type
MEASURES = ("class imbalance (CI)", "attribute imbalance (AI)", "spurious correlation (SC)")  # a triplet's, as titles

_HUES = COLOURS[:6]
_NAMED = {"red": VERMILION, "green": GREEN, "blue": BLUE, "black": "#000000", "grey": "#6E6E6E", "brown": "#8C564B"}
"""Attribute values that are shown in their own colour, as colour-blind readers can tell it from the others."""

_HATCHES = ("", "/////", "xxxxx", ".....", "-----")
"""Hatches of a group's bars by attribute value, which tell groups apart in grey print."""

_LINES: Any = ("-", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
"""Styles of a group's curve, told apart without colours: by group, or of many by attribute value; dashes are validation's."""

_AVERAGE_COLOUR, _WORST_COLOUR, _OTHERS_COLOUR = "0.45", "#241033", "0.55"  # no group has these, nor has text
_MAX_LABELLED_CELLS = 24
_MOST_WITH_GAPS = 48
_MAX_LABELLED_CURVES = 12
_MOST_SIGNS_ABREAST = 40  # of all clients' names; more stand upright
_INCHES_PER_CLIENT = 0.075
_INCHES_OF_MANY = 11.0


def plot_partition(
    matrices: Sequence[InteractionMatrix],
    path: Path,
    *,
    class_names: Sequence[str] | None = None,
    attribute_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> None:
    """Draw into a PNG what every client holds, and the federation's six measures (FedDiverse, arXiv:2504.11216, figure 3).

    On the left a bar per client in the order of ids, stacked by (class, attribute) cell; the strip beneath shows which of the
    client's three measures is largest. On the right the measures of the pooled data, and their means over the clients.

    More than ``crowd.MOST_BARS`` clients have no bars of their own: each column is the mean of some that follow one another,
    with the median and the outer deciles of their sizes, over the shares of their types.

    ``matrices`` are all of one shape (Y, A). Without names, classes are called y = 0, y = 1, ... and attribute values a = 0,
    a = 1, ...; a single attribute value goes without saying. Clients without names are numbered. The folder is made if need be.
    """
    num_classes, num_attributes = matrices[0].counts.shape
    groups = group_names(*_names(class_names, attribute_names, num_classes, num_attributes))
    many = len(matrices) > crowd.MOST_BARS
    width = _INCHES_OF_MANY if many else max(5.2, _INCHES_PER_CLIENT * len(matrices))
    # A legend fills its columns first: with a column per class, where that many fit, each holds one class.
    columns = min(num_classes, max(1, int(width / (0.5 + 0.06 * max(map(len, groups))))))
    rows = math.ceil(len(groups) / columns) if len(groups) <= _MAX_LABELLED_CELLS else 0
    with saved_figure(path, width + 2.6, 3.1 + 0.17 * max(rows, 2)) as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=(width, 2.1), height_ratios=(17, 1), hspace=0.02)
        bars = figure.add_subplot(grid[0, 0])
        (_draw_crowd if many else _draw_clients)(bars, matrices, groups, attribute_names or ())
        if rows:
            bars.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns + many, borderaxespad=0.2)
        strip, types = figure.add_subplot(grid[1, 0], sharex=bars), types_of(matrices)
        if many:
            _draw_shares(strip, types)
        else:
            _draw_types(strip, types, width, client_names)
        measures = figure.add_subplot(grid[:, 1])
        draw_measures(measures, matrices, fontsize=7)
        measures.set_xticks(range(3), [re.sub(" (?=[ics(])", "\n", name) for name in MEASURES], fontsize=7)
        measures.set_ylabel("measure, from 0 to 1")
        measures.legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)


def types_of(matrices: Sequence[InteractionMatrix]) -> list[str]:
    """Return each client's type."""
    if isinstance(matrices, InteractionMatrices) and len(matrices) > crowd.MOST_BARS:
        return matrices.types
    return [matrix.type for matrix in matrices]


def in_order(types: Sequence[str]) -> NDArray[np.intp]:
    """Return clients sorted by type, and by number within it."""
    return np.argsort([TYPES.index(kind) for kind in types], kind="stable")


def draw_measures(axes: "Axes", matrices: Sequence[InteractionMatrix], fontsize: int) -> None:
    """Draw the six measures of a federation as bars with their values."""
    if isinstance(matrices, InteractionMatrices) and len(matrices) > crowd.MOST_BARS:
        pooled, mean = matrices.pooled.triplet, matrices.triplets_KD.mean(axis=0)
    else:
        measured = measure_federation(matrices)
        pooled, mean = measured.global_triplet, np.array(measured.client_mean)
    for offset, colour, name, values in (
        (-0.2, "0.3", "all data pooled", pooled),
        (0.2, "0.7", "mean of clients", mean),
    ):
        bars = axes.bar(np.arange(3) + offset, values, width=0.38, color=colour, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=fontsize, padding=1)
    axes.set(ylim=(0, 1))


def plot_curves(
    metrics_csv: Path, path: Path, *, class_names: Sequence[str] | None = None, attribute_names: Sequence[str] | None = None
) -> None:
    """Draw a run's accuracies, or its ``main_metric``, and training loss by round into a PNG.

    For the names see ``plot_partition``.

    Dashed lines are the validation set, of which only the average and the worst group are drawn; others the test set. A
    dotted vertical line marks the best round by validation: highest worst-group accuracy, ties by average, then the earliest.
    ``metrics_csv`` is as ``CsvLog`` writes it, with at least one round; columns that are not there are not drawn.
    """
    rows = rows_of(metrics_csv)
    rounds = np.array([int(row["round"]) for row in rows])

    def curve(name: str) -> NDArray[np.float64]:
        return np.array([float(row.get(name) or "nan") for row in rows])

    metric = main_metric(rows[0])
    worst, scale, sign = f"{metric}_worst_group", 100 if metric == "acc" else 1, -1 if lower_is_better(metric) else 1
    groups = [(int(y), int(a)) for y, a in re.findall(rf"test/{re.escape(metric)}_group/y(\d+)_a(\d+)", " ".join(rows[0]))]
    num_classes, num_attributes = (max(index) + 1 for index in zip(*groups, strict=True)) if groups else (0, 0)
    classes, attributes = _names(class_names, attribute_names, num_classes, num_attributes)
    names, word = group_names(classes, attributes), "class" if len(attributes) == 1 else "group"
    with saved_figure(path, 7.6, 3.2) as figure:
        accuracy, loss = figure.subplots(1, 2, width_ratios=(3, 2))
        for name, colour, label in ((metric, _AVERAGE_COLOUR, "average"), (worst, _WORST_COLOUR, f"worst {word}")):
            ink: dict[str, Any] = {"color": colour, "zorder": 3}
            _draw_line(accuracy, rounds, scale * curve(f"test/{name}"), linewidth=1.8, label=label, **ink)
            _draw_line(accuracy, rounds, scale * curve(f"val/{name}"), linewidth=1.1, linestyle=DASHES, **ink)
        for shade, (y, a) in zip(_group_colours(num_classes, num_attributes, attributes, lines=True), groups, strict=False):
            style: dict[str, Any] = {"color": shade, "label": names[y * len(attributes) + a]}
            if len(groups) > _MAX_LABELLED_CURVES:
                # One name for all, which the first need not carry: it may have no test samples, and so no curve.
                named = f"each {word}" in accuracy.get_legend_handles_labels()[1]
                style = {"color": _OTHERS_COLOUR, "label": "" if named else f"each {word}"}
            few = len(groups) <= len(_LINES)
            style["linestyle"] = _LINES[(y * num_attributes + a if few else a) % len(_LINES)]
            _draw_line(accuracy, rounds, scale * curve(f"test/{metric}_group/y{y}_a{a}"), linewidth=1.0, **style)
        _draw_line(loss, rounds, curve("train/loss"), color="black", linewidth=1.2)
        best = _best_round(rounds, sign * curve(f"val/{worst}"), sign * curve(f"val/{metric}"))
        for axes in (accuracy, loss):
            axes.set(xlabel="round", xlim=(0, 1.03 * rounds[-1]), xticks=_whole_ticks(rounds[-1]))
            if best is not None:
                axes.axvline(best, color="0.3", linewidth=1.0, linestyle=":", label=f"round {best}: best\nby validation")
        kind = "accuracy" if metric == "acc" else metric
        title = f"{kind.capitalize()} on test data (dashed: validation)" if best is not None else f"Test {kind}"
        accuracy.set(title=title, ylabel="accuracy (%)" if metric == "acc" else metric)
        if metric == "acc":
            accuracy.set_ylim(0, 101)
        loss.set(title="Training loss of the clients in the round", ylabel="loss per sample")
        loss.set_ylim(bottom=0)
        figure.legend(*accuracy.get_legend_handles_labels(), loc="outside right upper")


def plot_selection(
    counts: Sequence[float] | Mapping[str, Sequence[float]],
    types: Sequence[str],
    path: Path,
    rounds: int,
    client_names: Sequence[str] = (),
) -> None:
    """Draw into a PNG how often each client took part, clients sorted by type (FedDiverse, arXiv:2504.11216, figures 5-9).

    Printed in the background is each type's share of all participations; the dashed line is where every client would be if all
    took part equally often. More than ``crowd.MOST_BARS`` clients are sorted by how often they took part within their type, and
    have no bars of their own: each column is the mean of some that follow one another.

    ``counts`` is in how many of the ``rounds`` each client took part, or that for several selectors by name, which are drawn
    one above the other. ``types`` has one of ``TYPES`` per client. The folder is made if need be.
    """
    panels = dict(counts) if isinstance(counts, Mapping) else {"": counts}
    order = in_order(types)
    percents = {name: 100 * np.asarray(panel, dtype=np.float64)[order] / rounds for name, panel in panels.items()}
    runs, many = _runs([types[client] for client in order.tolist()]), len(order) > crowd.MOST_BARS
    edges = crowd.neighbours([end - start for _, start, end in runs]) if many else np.arange(len(order) + 1)
    for percent in percents.values() if many else ():
        for _, start, end in runs:
            percent[start:end][::-1].sort()
    top = max(1.0, *(float(crowd.means(percent, edges).max()) for percent in percents.values()))
    width = _INCHES_OF_MANY if many else max(6.6, _INCHES_PER_CLIENT * len(order))
    with saved_figure(path, width, 2.8 if len(panels) == 1 else 0.6 + 1.75 * len(panels)) as figure:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False).ravel()
        for axes, (name, percent) in zip(grid, percents.items(), strict=True):
            if many:
                column_C = crowd.steps(crowd.means(percent, edges))
                axes.fill_between(edges - 0.5, column_C, step="post", color=_HUES[0], linewidth=0, zorder=2)
            else:
                axes.bar(range(len(percent)), percent, width=0.75, color=_HUES[0], zorder=2)
            _draw_participations(axes, percent, runs, top, width)
            axes.set_ylabel(name)
        if many:
            grid[-1].set_xlabel("clients, sorted by type and by how often they took part")
        else:
            _number_clients(grid[-1], order.tolist(), client_names)
            grid[-1].set_xlabel(f"client{'' if client_names else ' id'}, sorted by type")
        label = f"rounds with the client (% of {rounds})"
        if len(panels) == 1:
            grid[0].set_ylabel(label)
        else:
            figure.supylabel(label, fontsize=8)
        grid[0].set_title(
            "How often each client took part. Bold: the type's share of all participations. Dashed: all clients alike."
        )


def _draw_participations(
    axes: "Axes", percent: NDArray[np.float64], runs: Sequence[tuple[str, int, int]], top: float, width: float
) -> None:
    """Draw what is around one selector's bars; ``percent`` is sorted by type, and ``runs`` are the stretches of the types."""
    from matplotlib.ticker import MaxNLocator

    axes.axhline(percent.mean(), color="black", linewidth=0.9, linestyle=DASHES, zorder=3)
    label_width = 0.42 / (width - 0.6) * len(percent)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "fontweight": "bold"}
    for (kind, start, end), x in zip(runs, _label_positions(runs, label_width), strict=True):
        axes.axvspan(start - 0.5, end - 0.5, color=TYPE_COLOURS[kind], zorder=0, linewidth=0)
        share = percent[start:end].sum() / (percent.sum() or 1.0)
        box = {"facecolor": TYPE_COLOURS[kind], "edgecolor": "none", "pad": 1.5}
        axes.text(x, 1.22 * top, f"{kind}\n{100 * share:.1f} %", bbox=box, **style)
    axes.set(xlim=(-0.5, len(percent) - 0.5), ylim=(0, 1.38 * top))
    axes.set_yticks([tick for tick in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, top) if tick <= 1.1 * top])


def _draw_clients(
    axes: "Axes", matrices: Sequence[InteractionMatrix], groups: Sequence[str], attributes: Sequence[str]
) -> None:
    from matplotlib.collections import PolyCollection

    counts_KG = np.stack([matrix.counts.ravel() for matrix in matrices])
    top_KG = np.cumsum(counts_KG, axis=1)
    # Gaps between narrow bars would differ by a pixel: many clients have none, and edges on whole pixels.
    width, few = (0.85, True) if len(matrices) <= _MOST_WITH_GAPS else (1.0, False)
    left_K = np.arange(len(matrices)) - width / 2
    num_classes, num_attributes = matrices[0].counts.shape
    for group, colour in enumerate(_group_colours(num_classes, num_attributes, attributes)):
        top_K = top_KG[:, group]
        bottom_K = top_K - counts_KG[:, group]
        corners = (left_K, bottom_K), (left_K, top_K), (left_K + width, top_K), (left_K + width, bottom_K)
        # One collection per group: with a hundred clients and classes, single bars would take a minute.
        boxes_K42 = np.moveaxis(np.array(corners), 2, 0)
        style: Any = {"facecolor": colour, "linewidth": 0, "antialiased": few, **_hatch(group, num_attributes)}
        axes.add_collection(PolyCollection(list(boxes_K42), label=groups[group], **style))
    axes.set(ylabel="samples", xlim=(-0.5, len(matrices) - 0.5), ylim=(0, 1.05 * max(top_KG.max(), 1)))
    axes.tick_params(axis="x", bottom=False, labelbottom=False)


def _draw_crowd(axes: "Axes", matrices: Sequence[InteractionMatrix], groups: Sequence[str], attributes: Sequence[str]) -> None:
    """Draw many clients as columns, each of them the mean of neighbours."""
    many = matrices if isinstance(matrices, InteractionMatrices) else None
    counts_KYA = many.counts_KYA if many is not None else np.stack([matrix.counts for matrix in matrices])
    counts_KG = counts_KYA.reshape(len(counts_KYA), -1).astype(np.float64)
    edges = crowd.neighbours([len(matrices)])
    top_CG = np.cumsum(crowd.means(counts_KG, edges), axis=1)
    bottom_C = np.zeros(len(top_CG))
    num_classes, num_attributes = matrices[0].counts.shape
    for group, colour in enumerate(_group_colours(num_classes, num_attributes, attributes)):
        stretch: Any = {"step": "post", "facecolor": colour, "linewidth": 0, "label": groups[group]}
        stretch |= _hatch(group, num_attributes)
        axes.fill_between(edges - 0.5, crowd.steps(bottom_C), crowd.steps(top_CG[:, group]), **stretch)
        bottom_C = top_CG[:, group]
    low_C, median_C, high_C = crowd.quantiles(counts_KG.sum(axis=1), edges, (0.1, 0.5, 0.9))
    style: Any = {"where": "post", "color": "black"}
    axes.step(edges - 0.5, crowd.steps(median_C), linewidth=0.9, label="median client", **style)
    for quantile_C, label in ((low_C, "10 % and 90 %"), (high_C, None)):
        axes.step(edges - 0.5, crowd.steps(quantile_C), linewidth=0.5, linestyle=DASHES, label=label, **style)
    axes.set(ylabel="samples per client", xlim=(-0.5, len(matrices) - 0.5), ylim=(0, 1.05 * max(*high_C, *bottom_C, 1)))
    axes.tick_params(axis="x", bottom=False, labelbottom=False)


def _draw_shares(axes: "Axes", types: Sequence[str]) -> None:
    """Draw which part of many clients is of which type, column by column."""
    edges = crowd.neighbours([len(types)])
    bottom_C = np.zeros(len(edges) - 1)
    types_K = np.array(types)
    for kind in TYPES:
        is_K = (types_K == kind).astype(np.float64)
        top_C = bottom_C + crowd.means(is_K, edges)
        if is_K.any():
            stretch: Any = {"step": "post", "facecolor": TYPE_COLOURS[kind], "linewidth": 0}
            label = f"{kind} {100 * is_K.mean():.0f} %"
            axes.fill_between(edges - 0.5, crowd.steps(bottom_C), crowd.steps(top_C), label=label, **stretch)
        bottom_C = top_C
    axes.legend(loc="upper left", bbox_to_anchor=(0, -1.2), ncols=len(TYPES), borderaxespad=0)
    axes.set(ylim=(0, 1), yticks=[], xlabel=f"client id, {len(types) / len(bottom_C):.0f} clients a column")
    axes.set_ylabel("types", rotation=0, ha="right", va="center")
    axes.spines["left"].set_visible(False)


def _draw_types(axes: "Axes", types: Sequence[str], width: float, client_names: Sequence[str]) -> None:
    axes.bar(range(len(types)), 1, width=1, color=[TYPE_COLOURS[kind] for kind in types])
    for kind, start, end in _runs(types):
        if (end - start) * width / len(types) > 0.14 * len(kind) / 2:
            axes.text((start + end - 1) / 2, 0.45, kind, ha="center", va="center", fontsize=6.5)
    _number_clients(axes, range(len(types)), client_names)
    axes.set(ylim=(0, 1), yticks=[], xlabel="client" if client_names else "client id")
    axes.set_ylabel("type", rotation=0, ha="right", va="center")
    axes.spines["left"].set_visible(False)


def _number_clients(axes: "Axes", clients: Sequence[int], names: Sequence[str]) -> None:
    step = 1 if len(clients) <= 40 else 5
    labels = client_labels(clients[::step], names)
    axes.set_xticks(range(0, len(clients), step), labels, fontsize=7)
    if names and sum(map(len, labels)) > _MOST_SIGNS_ABREAST:
        axes.tick_params(axis="x", labelrotation=90)


def _names(
    class_names: Sequence[str] | None, attribute_names: Sequence[str] | None, num_classes: int, num_attributes: int
) -> tuple[Sequence[str], Sequence[str]]:
    classes = class_names or [f"y = {label}" for label in range(num_classes)]
    return classes, attribute_names or [f"a = {attribute}" for attribute in range(num_attributes)]


def _draw_line(axes: "Axes", rounds: NDArray[np.int64], values: NDArray[np.float64], **style: Any) -> None:
    measured = np.isfinite(values)
    if measured.any():
        # A lone point has no line to be seen by.
        axes.plot(rounds[measured], values[measured], marker="o" if measured.sum() == 1 else None, markersize=3, **style)


def _whole_ticks(last: int) -> list[int]:
    """Return up to six whole numbers from 0 to ``last`` at equal distances."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    return [int(tick) for tick in ticks if 0 <= tick <= last and tick == int(tick)]


def _best_round(rounds: NDArray[np.int64], worst: NDArray[np.float64], average: NDArray[np.float64]) -> int | None:
    ranked = [(w, a, -r) for r, w, a in zip(rounds.tolist(), worst, average, strict=True) if math.isfinite(w + a)]
    return -max(ranked)[2] if ranked else None


def _group_colours(
    num_classes: int, num_attributes: int, attributes: Sequence[str] = (), *, lines: bool = False
) -> list[tuple[float, float, float]]:
    """Return a colour per group: the class's hue, paler with every attribute value, or darker where thin ``lines`` are drawn.

    Where all attribute values are names of colours, the hue is the attribute's, and the shade the class's.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    named = len(attributes) == num_attributes > 1 and all(name in _NAMED for name in attributes)
    number, shades = (num_attributes, num_classes) if named else (num_classes, num_attributes)
    many = colormaps["viridis"](np.linspace(0, 0.6 if lines else 0.95, number))
    colours = [_NAMED[name] for name in attributes] if named else many if number > len(_HUES) else _HUES[:number]
    hues = [np.array(to_rgb(colour)) for colour in colours]
    steps = np.linspace(0, (0.4 if lines else 0.55) if shades <= 2 else 0.6 if lines else 0.8, shades)
    towards = 0.0 if lines else 1.0
    by_hue = [[hue + (towards - hue) * step for step in steps] for hue in hues]
    ordered = (by_hue[a][y] if named else by_hue[y][a] for y in range(num_classes) for a in range(num_attributes))
    return [(float(r), float(g), float(b)) for r, g, b in ordered]


def _hatch(group: int, num_attributes: int) -> dict[str, Any]:
    """Return the hatch of a group's attribute value; the first has none, and none of many has one."""
    hatch = _HATCHES[group % num_attributes] if num_attributes <= len(_HATCHES) else ""
    return {"hatch": hatch, "edgecolor": "white"} if hatch else {}


def _runs(types: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the stretches of equal types as (type, start, end)."""
    runs: list[tuple[str, int, int]] = []
    for kind, members in itertools.groupby(types):
        start = runs[-1][2] if runs else 0
        runs.append((kind, start, start + len(list(members))))
    return runs


def _label_positions(runs: Sequence[tuple[str, int, int]], gap: float) -> list[float]:
    """Return the centre of each run, moved where neighbours (or the frame) would be closer than ``gap`` allows."""
    centres = [(start + end - 1) / 2 for _, start, end in runs]
    at_least = gap / 2 - 0.5
    for position, centre in enumerate(centres):
        centres[position] = max(centre, at_least)
        at_least = centres[position] + gap
    at_most = runs[-1][2] - 0.5 - gap / 2
    for position, centre in reversed(list(enumerate(centres))):
        centres[position] = min(centre, at_most)
        at_most = centres[position] - gap
    return centres
