"""What models give away, or how unlike they treat groups, beside how well they do."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy import stats

from fedfacet.analysis.audits import KINDS, MEAN, is_of_attack
from fedfacet.analysis.notes import notes_on, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, caption_of, check_metric, group_runs, in_columns, ordered
from fedfacet.analysis.writers import Table
from fedfacet.errors import ConfigError
from fedfacet.plots.labels import Point, label_points
from fedfacet.plots.style import COLOURS, DASHES, axis_name, saved_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = f"{KINDS['clients']}/{MEAN}/auc"

ACCURACIES = {
    "received_test/acc_mean": "clients, as received",
    "trained_test/acc_mean": "clients, after local training",
    "test/acc": "server",
}
"""Accuracies in percent -> whose they are."""

OF_GROUPS = {"test/acc": "all groups", "test/acc_worst_group": "worst group"}
"""The same beside gaps between groups."""

_ATTACKED = {"after_training": "trained_test/acc_mean", "received": "received_test/acc_mean", "after_aggregation": "test/acc"}


_INK = ("black", *COLOURS)
_FILLS: Any = ("full", "none", "left", "bottom", "right", "top")  # of a colour's markers
_NARROWEST = 2.2  # of panels side by side, in inches
_MARKERS = (*"osD^vP*X<>pdh", (4, 1, 45), (3, 1, 0), (6, 1, 0))  # of matplotlib; the last are stars of so many points


class Extent(NamedTuple):
    """A mean and its interval, whose ends are the mean where there is none."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The runs of one setting: per metric, what was measured with each seed, in percent; NaN where it was not."""

    dataset: str
    row: str
    column: str
    seeds: tuple[int, ...]
    values: dict[str, list[float]]

    def extent(self, metric: str) -> Extent | None:
        """Return the mean and its 95 % interval by Student's t; ``None`` where a seed has no value."""
        values = self.values[metric]
        if not all(map(math.isfinite, values)):
            return None
        mean, number = statistics.fmean(values), len(values)
        reach = float(stats.t.ppf(0.975, number - 1)) * statistics.stdev(values) / math.sqrt(number) if number > 1 else 0.0
        return Extent(mean, mean - reach, mean + reach)

    def shown(self, metric: str) -> str:
        """Return the mean, and the interval over several seeds."""
        if (extent := self.extent(metric)) is None:
            return "-"
        return f"{extent.mean:.2f}" + (f" [{extent.low:.2f}, {extent.high:.2f}]" if len(self.seeds) > 1 else "")


@dataclass(frozen=True, slots=True, eq=False)
class Tradeoff:
    """Settings; markers stand for the rows of ``study`` and colours for its columns, ``attacked`` are the attacked models."""

    study: Study
    accuracies: Mapping[str, str]
    attacked: tuple[str, ...]
    settings: tuple[Setting, ...]
    caption: str
    notes: tuple[str, ...]

    @property
    def chance(self) -> float | None:
        """What an attack finds that knows nothing, in percent."""
        column = self.study.metric.rpartition("/")[2]
        if column.startswith("tpr_at_"):
            return 100 * float(column.removeprefix("tpr_at_"))
        return {"auc": 50.0, "auc_pooled": 50.0, "null_auc": 50.0, "advantage": 0.0}.get(column)

    def table(self) -> Table:
        """Return a line per setting; in CSV a line per setting and seed, in percent."""
        names = (self.study.metric, *self.accuracies)
        accuracies = (f"acc, {whose}" for whose in self.accuracies.values())
        columns = ["dataset", self.study.corner, self.study.heads, "seeds", self.study.metric, *accuracies]
        rows, numbers = [], [("dataset", "row", "column", "seed", *names)]
        for one in self.settings:
            place = (one.dataset, one.row, one.column)
            shown = (
                self.study.names.get(f"dataset.{one.dataset}", one.dataset),
                self.study.row(one.row),
                self.study.column(one.column),
            )
            rows.append([*shown, str(len(one.seeds)), *map(one.shown, names)])
            numbers += [(*place, *of_seed) for of_seed in zip(one.seeds, *(one.values[name] for name in names), strict=True)]
        title = f"{self.study.metric_name} beside test accuracies (%), means over seeds, with 95 % intervals in brackets."
        return Table(self.caption, columns, rows, names=3, notes=self.notes, label="tradeoff", numbers=numbers, title=title)


def tradeoff_of(
    runs: Sequence[Run],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    metric: str = METRIC,
    command: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Tradeoff:
    """Return what attacks find, or a gap between groups, and how accurate models are, per data set and setting.

    Source: the thesis, figures 9, and 7b, whose attack is ``attack/loss_threshold/advantage``. Both show one accuracy of the
    clients, of the parts that they receive, while what is attacked are the models after local training; here there are both.

    Args:
        runs: finished ones are counted, the others are named in a note.
        rows: config keys that tell markers apart; ``None`` for the sub-model, and the model's width where runs differ in it
            and colours do not tell; for the method where the metric is a gap.
        columns: config keys that tell colours apart; ``None`` for the number of clients with the whole model, and where no
            run has such a number for the model's width; for the aggregator where the metric is a gap.
        metric: of attacks, or of group fairness.
        command: what the user typed, for the caption.
        names: as for ``Study``.

    Raises:
        ConfigError: as ``Study``, or for another ``metric``.
    """
    if not is_of_attack(metric) and not metric.startswith("test/fair/"):
        raise ConfigError(
            f"Expected a metric of attacks, such as {METRIC}, or a gap between groups, such as test/fair/equal_opportunity, "
            f"but got {metric!r}: name one of them."
        )
    accuracies = ACCURACIES
    if not is_of_attack(metric):
        accuracies, rows, columns = OF_GROUPS, rows or ["method"], columns or ["aggregator"]
    if columns is None:
        columns = ["capacity.num_whole" if any(run.setting("capacity.num_whole") for run in runs) else "model.width"]
    if rows is None:
        shown = "model.width" in columns or len({run.setting("model.width") for run in runs}) == 1
        rows = ["submodel"] if shown else ["submodel", "model.width"]
    study = Study(runs, rows, columns, metric, command=command, names=names or {})
    measured = (metric, *accuracies)
    for name in accuracies:
        check_metric(study.finished, name, study.moments)
    notes, settings = notes_on_unfinished(runs), []
    for dataset in ordered({str(run.setting("dataset")) for run in study.finished}):
        groups = group_runs([run for run in study.finished if str(run.setting("dataset")) == dataset], rows, columns)
        for name in measured:
            notes += notes_on(groups, name, study.moments, study.keys)
        for row, column in in_columns(groups):
            members = groups[row, column]
            values = {name: [100 * run.at("last").get(name, math.nan) for run in members] for name in measured}
            settings.append(Setting(dataset, row, column, tuple(run.seed for run in members), values))
    attacked = {
        _ATTACKED[moment]
        for run in study.finished
        for audit in run.audits
        if audit.round == run.at("last").get("round")
        and metric.partition("/")[0] == KINDS[str(audit.threat_model["victim"])]
        and (moment := audit.threat_model.get("moment")) in _ATTACKED
    }
    sentence = (
        f"A gap between groups (`{metric}`) beside accuracies on the test set, in percent. "
        if accuracies is OF_GROUPS
        else f"What attacks find (`{metric}`) beside accuracies on the test set. Clients' are means over clients: of the "
        "models as they receive them, which the thesis shows, and after local training. "
    ) + "In brackets 95 % intervals by Student's t over seeds. "
    caption = sentence + caption_of(study.finished, measured, study.moments, command=command)
    return Tradeoff(study, accuracies, tuple(sorted(attacked)), tuple(settings), caption, tuple(dict.fromkeys(notes)))


def draw_tradeoff(tradeoff: Tradeoff, path: Path, fit: float | None = None) -> None:
    """Draw accuracies upwards over what attacks find into a picture, a row of panels per data set.

    In each panel the further up and left, the better. All panels of a row but the last share their heights: that is the
    server's. Dashes stand where an attacker is who knows nothing. Settings without a value are left out. Where a data set has
    one setting per marker, each has its name beside it. Otherwise a legend names markers and colours, which also fill the
    markers in different ways. A picture that has to ``fit`` a narrow width in inches has its panels below each other.
    """
    study, names = tradeoff.study, list(tradeoff.accuracies)
    extents = {one: one.extent(study.metric) for one in tradeoff.settings}
    xs = {one: x for one, x in extents.items() if x is not None}
    if not xs:
        raise ConfigError(f"Expected a setting with {study.metric!r} in all its runs, but there is none: measure the others.")
    lone = tradeoff.attacked[0] if len(tradeoff.attacked) == 1 else None
    titles = [f"{whose}{' (attacked)' if name == lone else ''}" for name, whose in tradeoff.accuracies.items()]
    rows: dict[str, list[Setting]] = {}
    for one in xs:
        rows.setdefault(one.dataset, []).append(one)
    markers, colours = list(dict.fromkeys(one.row for one in xs)), list(dict.fromkeys(one.column for one in xs))
    named = all(len({one.row for one in of}) == len(of) for of in rows.values())
    looks: dict[str, Any] = {name: "o" if named else _MARKERS[place % len(_MARKERS)] for place, name in enumerate(markers)}
    inks: dict[str, dict[str, Any]] = {
        name: {"color": _INK[place % len(_INK)], "fillstyle": "full" if named else _FILLS[place % len(_FILLS)]}
        for place, name in enumerate(markers if named else colours)
    }
    entries = len(markers) + len(colours) + 3
    width = 3.4 * len(titles) if named else 2.0 + 2.5 * len(titles)
    height = 0.3 + 3.2 * len(rows) if named else max(0.5 + 2.2 * len(rows), 0.4 + 0.16 * entries)
    chance = [] if tradeoff.chance is None else [tradeoff.chance]
    axis = study.names.get(study.metric) or f"{axis_name(study.metric)} (%)"
    stacked = fit is not None and fit / len(titles) < _NARROWEST
    lines, columns = (len(rows) * len(titles), 1) if stacked else (len(rows), len(titles))
    if fit is not None:
        width, height = fit, 0.3 + (2.6 if named else 2.0) * lines + (0 if named else 0.16 * entries)
    with saved_figure(path, width, height) as figure:
        grid: Any = figure.subplots(lines, columns, sharex="none" if stacked else "row", squeeze=False)
        grid = grid.reshape(len(rows), len(titles))
        panels = []
        for line, (dataset, of) in zip(grid, rows.items(), strict=True):
            alike = len({one.column for one in of}) == 1
            for place, (axes, name, title) in enumerate(zip(line, names, titles, strict=True)):
                points = []
                for one in of:
                    if (y := one.extent(name)) is not None:
                        ink = inks[one.row if named else one.column]
                        _draw(axes, xs[one], y, looks[one.row], ink)
                        row, column = study.row(one.row), study.column(one.column)
                        label = row if alike or row == column else f"{row}, {column}"
                        points.append(Point(label, xs[one].mean, y.mean, ink["color"]))
                panels.append((axes, points))
                for at in chance:
                    axes.axvline(at, color="0.4", linestyle=DASHES, linewidth=0.8, zorder=1)
                shared = names[:-1] if place < len(names) - 1 else [name]
                heights = [end for one in of for other in shared for end in one.extent(other) or ()]
                axes.set_xlim(_frame([*(end for one in of for end in xs[one]), *chance]))
                if heights:
                    axes.set_ylim(_frame(heights))
                where = study.names.get(f"dataset.{dataset}", dataset)
                axes.set(title=f"{where}: {title}" if len(rows) > 1 else title, xlabel=axis)
            for axes in line if stacked else line[:1]:
                axes.set_ylabel("test accuracy (%)")
        if named:
            label_points(figure, panels)
        else:
            looks = {study.row(name): look for name, look in looks.items()}
            _explain(figure, (study.corner, study.heads), looks, {study.column(name): ink for name, ink in inks.items()}, fit)


def _explain(
    figure: "Figure", heads: tuple[str, str], looks: Mapping[str, Any], inks: Mapping[str, Mapping[str, Any]], fit: float | None
) -> None:
    """Add a legend of markers and colours; below the panels if the figure has to fit a width."""
    from matplotlib.lines import Line2D

    def handle(label: str, marker: Any = "none", **ink: Any) -> Line2D:
        return Line2D([], [], linestyle="none", marker=marker, markersize=5, label=label, markerfacecoloralt="white", **ink)

    handles = [
        *(handle(heads[0]), *(handle(name, look, color="0.3") for name, look in looks.items())),
        *(handle(""), handle(heads[1]), *(handle(name, "o", **ink) for name, ink in inks.items())),
    ]
    figure.legend(handles=handles, loc="outside right upper" if fit is None else "outside lower center")


def _frame(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 0.25)
    return low - room, high + room


def _draw(axes: Any, x: Extent, y: Extent, marker: Any, ink: Mapping[str, Any]) -> None:
    colour = ink["color"]
    axes.plot([x.low, x.high], [y.mean, y.mean], color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    axes.plot([x.mean, x.mean], [y.low, y.high], color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    edge: dict[str, Any] = {"markeredgecolor": "white" if ink["fillstyle"] == "full" else colour, "markeredgewidth": 0.5}
    edge |= {"markerfacecoloralt": "white", "markersize": 5.5, "linestyle": "none", "zorder": 3}
    axes.plot(x.mean, y.mean, marker=marker, **ink, **edge)
