"""What models give away, or how unlike they treat groups, beside how well they do."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from fedfacet.analysis.audits import KINDS, MEAN, is_of_attack
from fedfacet.analysis.notes import notes_on, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, caption_of, check_metric, group_runs, ordered, places_of
from fedfacet.analysis.writers import Table
from fedfacet.errors import ConfigError
from fedfacet.plots.figure import axis_name
from fedfacet.plots.tradeoff import Dot, Extent, plot_tradeoff

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


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The runs of one setting: per metric, what was measured with each seed, in percent; NaN where it was not."""

    dataset: str
    row: str
    column: str
    seeds: tuple[int, ...]
    values: dict[str, list[float]]


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
            place, values = (one.dataset, one.row, one.column), [one.values[name] for name in names]
            rows.append([*place, str(len(one.seeds)), *map(_told, values)])
            numbers += [(*place, *of_seed) for of_seed in zip(one.seeds, *values, strict=True)]
        return Table(self.caption, columns, rows, names=3, notes=self.notes, label="tradeoff", numbers=numbers)


def tradeoff_of(
    runs: Sequence[Run],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    metric: str = METRIC,
    command: str | None = None,
) -> Tradeoff:
    """Return what attacks find, or a gap between groups, and how accurate models are, per data set and setting.

    Source: the thesis, figures 7b and 9, of attacks. Both show one accuracy of the clients, of the parts that they receive,
    while what is attacked are the models after local training; here there are both.

    Args:
        runs: finished ones are counted, the others are named in a note.
        rows: config keys that tell markers apart; ``None`` for the sub-model, and the model's width where runs differ in it
            and colours do not tell; for the method where the metric is a gap.
        columns: config keys that tell colours apart; ``None`` for the number of clients with the whole model, and where no
            run has such a number for the model's width; for the aggregator where the metric is a gap.
        metric: of attacks, or of group fairness.
        command: what the user typed, for the caption.

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
        told = "model.width" in columns or len({run.setting("model.width") for run in runs}) == 1
        rows = ["submodel"] if told else ["submodel", "model.width"]
    study, names = Study(runs, rows, columns, metric, command=command), (metric, *accuracies)
    for name in accuracies:
        check_metric(study.finished, name, study.moments)
    notes, settings = notes_on_unfinished(runs), []
    for dataset in ordered({str(run.setting("dataset")) for run in study.finished}):
        groups = group_runs([run for run in study.finished if str(run.setting("dataset")) == dataset], rows, columns)
        for name in names:
            notes += notes_on(groups, name, study.moments, study.keys)
        for row, column in places_of(groups):
            members = groups[row, column]
            values = {name: [100 * run.at("last").get(name, math.nan) for run in members] for name in names}
            settings.append(Setting(dataset, row, column, tuple(run.seed for run in members), values))
    attacked = {
        _ATTACKED[moment]
        for run in study.finished
        for audit in run.audits
        if audit.round == run.at("last").get("round")
        and metric.partition("/")[0] == KINDS[str(audit.threat_model["victim"])]
        and (moment := audit.threat_model.get("moment")) in _ATTACKED
    }
    said = (
        f"A gap between groups (`{metric}`) beside accuracies on the test set, in percent. "
        if accuracies is OF_GROUPS
        else f"What attacks find (`{metric}`) beside accuracies on the test set. Clients' are means over clients: of the "
        "models as they receive them, which the thesis shows, and after local training. "
    ) + "In brackets 95 % intervals by Student's t over seeds. "
    caption = said + caption_of(study.finished, names, study.moments, command=command)
    return Tradeoff(study, accuracies, tuple(sorted(attacked)), tuple(settings), caption, tuple(dict.fromkeys(notes)))


def draw_tradeoff(tradeoff: Tradeoff, path: Path) -> None:
    """Draw accuracies upwards over what attacks find, a row of panels per data set; settings without a value are left out."""
    dots: dict[str, list[Dot]] = {}
    for one in tradeoff.settings:
        if (x := _extent(one.values[tradeoff.study.metric])) is not None:
            ys = tuple(_extent(one.values[name]) for name in tradeoff.accuracies)
            dots.setdefault(one.dataset, []).append(Dot(one.row, one.column, x, ys))
    if not dots:
        raise ConfigError(
            f"Expected a setting with {tradeoff.study.metric!r} in all its runs, but there is none: measure the others."
        )
    lone = tradeoff.attacked[0] if len(tradeoff.attacked) == 1 else None
    plot_tradeoff(
        dots,
        [f"{whose}{' (attacked)' if name == lone else ''}" for name, whose in tradeoff.accuracies.items()],
        path,
        x_label=f"{axis_name(tradeoff.study.metric)} (%)",
        y_label="test accuracy (%)",
        chance=tradeoff.chance,
        heads=(tradeoff.study.corner, tradeoff.study.heads),
    )


def _told(values: Sequence[float]) -> str:
    extent = _extent(values)
    if extent is None:
        return "-"
    return f"{extent.mean:.2f}" + (f" [{extent.low:.2f}, {extent.high:.2f}]" if len(values) > 1 else "")


def _extent(values: Sequence[float]) -> Extent | None:
    """Return the mean and its 95 % interval by Student's t; ``None`` where a seed has no value."""
    if not all(map(math.isfinite, values)):
        return None
    mean, number = statistics.fmean(values), len(values)
    reach = float(stats.t.ppf(0.975, number - 1)) * statistics.stdev(values) / math.sqrt(number) if number > 1 else 0.0
    return Extent(mean, mean - reach, mean + reach)
