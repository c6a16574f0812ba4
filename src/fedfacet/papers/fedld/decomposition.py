"""Loss decompositions of rounds as data, tables and a picture (FedLD, MICCAI 2024, equation 2 and figure 2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfacet.analysis.notes import beside_the_seed
from fedfacet.analysis.runs import Run
from fedfacet.analysis.writers import Table, as_number
from fedfacet.plots.style import COLOURS, saved_figure

if TYPE_CHECKING:
    from fedfacet.runs.rerun import DecomposedRound

TERMS = ("local_loss", "distribution_shift_loss", "aggregation_loss")
_DASHES = ("-", "--", ":", "-.")


def describe_decompositions(runs: Sequence[Run], rounds: "Sequence[DecomposedRound]") -> list[dict[str, Any]]:
    """Return one round of each run as JSON-able data, in the order of the settings, large numbers first, and of the seeds.

    Args:
        runs: of one study; each is named by the settings in which they differ, those that a ``method=`` stands for by its name.
        rounds: of each run.

    Returns:
        Per run its ``run``, ``seed``, ``settings`` (those that differ), ``round``, ``num_rounds`` of the run, ``same_model``,
        the signed terms and the ``global_loss`` that they add up to, and per participant its ``id``, ``num_samples``,
        ``own_loss`` (its local model on its own samples), ``loss_on_all`` (its local model on all participants') and
        ``global_model_loss`` (the new global model on its samples).
    """
    keys = _named_by_method(runs, [key for key in beside_the_seed(runs) if key != "partition_digest"])
    described = []
    for run, decomposed in zip(runs, rounds, strict=True):
        parts = decomposed.decomposition
        columns = (parts.num_samples, np.diag(parts.losses), parts.losses @ parts.shares, parts.global_losses)
        of_clients = zip(decomposed.client_ids, *(column.tolist() for column in columns), strict=True)
        names = ("id", "num_samples", "own_loss", "loss_on_all", "global_model_loss")
        one: dict[str, Any] = {"run": str(run.path), "seed": run.seed, "settings": {key: run.setting(key) for key in keys}}
        one |= {name: getattr(decomposed, name) for name in ("round", "num_rounds", "same_model")}
        one |= {**parts.terms(), "clients": [dict(zip(names, values, strict=True)) for values in of_clients]}
        described.append(one)

    def place(one: Mapping[str, Any]) -> tuple[list[tuple[float, str]], int]:
        return [(-(as_number(value) or 0.0), value) for value in map(str, one["settings"].values())], one["seed"]

    return sorted(described, key=place)


def tables_of(described: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables that show decompositions, signed."""
    rows = []
    for one in described:
        label = [*map(str, one["settings"].values())] or [Path(one["run"]).name]
        terms = [f"{one[term]:+.4f}" for term in TERMS]
        rows.append([*label, str(one["seed"]), str(one["round"]), *terms, f"{one['global_loss']:.4f}"])
    columns = [*(described[0]["settings"] or ["run"]), "seed", "round", "local", "shift", "aggregation", "sum = global"]
    tables = [Table("Loss of the new global model on the participants' samples, by what it comes from", columns, rows)]
    if len(described) == 1:
        clients = [
            [str(client["id"]), str(client["num_samples"])]
            + [f"{client[name]:.4f}" for name in ("own_loss", "loss_on_all", "global_model_loss")]
            for client in described[0]["clients"]
        ]
        head = ["client", "samples", "own model, own samples", "own model, all samples", "global model, own samples"]
        tables.append(Table("Participants; mean cross entropy", head, clients))
    return tables


def remarks_on(described: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings about the rounds, a sentence each."""
    remarks = []
    for one in described:
        if one["round"] > one["num_rounds"]:
            remarks.append(f"{one['run']}: round {one['round']} is the one that would follow its {one['num_rounds']} rounds.")
        if one["same_model"] is False:
            remarks.append(
                f"{one['run']}: the model of the checkpoint differs in rounding (another machine, release or inexact engine)."
            )
    return remarks


def plot_decompositions(described: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the absolute values of the terms into a PNG, a panel each, as in the paper's figure 2.

    Where one setting of the runs is a number with several values (``partition.alpha``, say), it is the horizontal axis, largest
    value first, and the others make lines; else every setting is a bar, to one scale. Values are means over the seeds; a line
    lies in the band between its smallest and largest seed. Terms whose mean is negative are hatched bars or open markers.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axis = _axis_of(described)
    negative = False
    points: dict[tuple[str, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for one in described:
        series = tuple(str(value) for key, value in one["settings"].items() if key != axis)
        points.setdefault(series, {}).setdefault(str(one["settings"].get(axis)), []).append(one)
    values = sorted(
        {value for line in points.values() for value in line}, key=lambda text: as_number(text) or 0.0, reverse=True
    )
    with saved_figure(path, 7.6, 2.6 + 0.17 * len(points)) as figure:
        panels = figure.subplots(1, 3, sharey=axis is None)
        for panel, term in zip(panels, TERMS, strict=True):
            for position, (series, line) in enumerate(points.items()):
                seeds = [[abs(one[term]) for one in line.get(value, ())] or [np.nan] for value in values]
                heights = list(map(fmean, seeds))
                below = [fmean([one[term] for one in line.get(value, ())] or [np.nan]) < 0 for value in values]
                negative |= any(below)
                style: dict[str, Any] = {"color": COLOURS[position % len(COLOURS)], "label": ", ".join(series) or None}
                if axis is None:
                    hatch = {"hatch": "////", "edgecolor": "white"} if any(below) else {}
                    panel.bar([position], heights, width=0.7, **hatch, **style)
                else:
                    # Lines of equal local models lie on one another.
                    dashes = _DASHES[position % len(_DASHES)]
                    panel.plot(range(len(values)), heights, dashes, marker="o", markersize=3, linewidth=1.2, **style)
                    low, high = list(map(min, seeds)), list(map(max, seeds))
                    panel.fill_between(range(len(values)), low, high, color=style["color"], alpha=0.15, linewidth=0)
                    if any(below):
                        at = np.flatnonzero(below)
                        panel.scatter(at, np.take(heights, at), s=20, facecolor="white", edgecolor=style["color"], zorder=3)
            panel.set(title=term.replace("_", " "), ylim=(0, None))
            if axis is None:
                panel.set(xlim=(-1, len(points)), xticks=[])
                if not any(points):
                    panel.set_xticks([0], [Path(described[0]["run"]).name])
            else:
                panel.set_xticks(range(len(values)), values)
                panel.set_xlabel(axis.rpartition(".")[2])
        rounds = sorted({one["round"] for one in described})
        panels[0].set_ylabel(f"absolute value after round {', '.join(map(str, rounds))}")
        handles: list[Any] = panels[0].get_legend_handles_labels()[0] if any(points) else []
        if negative:
            meaning: dict[str, Any] = {"label": "negative: lowers the loss"}
            handles.append(
                Patch(facecolor="grey", edgecolor="white", hatch="////", **meaning)
                if axis is None
                else Line2D([], [], linestyle="", marker="o", markerfacecolor="white", markeredgecolor="grey", **meaning)
            )
        if handles:
            # Handles as long as the longest pattern of dashes.
            figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), handlelength=3)


def _named_by_method(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Return the keys; if ``method`` tells the runs apart as well, it replaces the keys that it determines."""
    methods = [run.setting("method") for run in runs]
    if not set(methods).isdisjoint({None, "null"}):
        return list(keys)
    number = len(set(methods))
    chosen = [
        key for key in keys if len({(method, run.setting(key)) for method, run in zip(methods, runs, strict=True)}) == number
    ]
    if not chosen or len({tuple(run.setting(key) for key in chosen) for run in runs}) != number:
        return list(keys)
    return ["method", *(key for key in keys if key not in chosen)]


def _axis_of(described: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the first setting that is a number everywhere, and has several values."""
    values = {key: {str(one["settings"][key]) for one in described} for key in described[0]["settings"]}
    return next((key for key, of in values.items() if len(of) > 1 and None not in map(as_number, of)), None)
