"""Runs -> how a metric went by round: mean and band over seeds, where it ended, how high it got, and how soon."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.groups import named
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, caption_of, in_columns
from fedfacet.analysis.tables import cell_of
from fedfacet.analysis.writers import Table, as_number, distinguishing_columns
from fedfacet.errors import ConfigError
from fedfacet.plots.curves import Band, plot_bands
from fedfacet.plots.style import axis_name

AGAINST = {"round": "round", "bytes": "megabytes down and up", "sim/clock": "simulated minutes"}
"""What can be drawn to the right -> what that is called."""

_MEGABYTES_PER_FLOAT = 4e-6
_FLOATS = ("comm/floats_down", "comm/floats_up", "comm/query_floats_down", "comm/query_floats_up")


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A metric by round in S runs of one setting, in the table's unit.

    ``rounds_R`` are those in which every seed measured it, one at least, and ``values_SR`` what they measured. ``places_R`` is
    where these rounds are drawn: at their numbers, or at the megabytes or simulated minutes after them, a mean over seeds.
    """

    row: str
    column: str
    seeds: tuple[int, ...]
    rounds_R: NDArray[np.int64]
    values_SR: NDArray[np.float64]
    places_R: NDArray[np.float64]

    @property
    def final_S(self) -> list[float]:
        """The value after the last of the rounds, per seed."""
        return list(map(float, self.values_SR[:, -1]))

    def peak_S(self, lower_is_better: bool) -> list[tuple[float, int]]:
        """Return the best value and its round, the earliest of several, per seed."""
        best_S = self.values_SR.argmin(axis=1) if lower_is_better else self.values_SR.argmax(axis=1)
        return [(float(self.values_SR[s, best]), int(self.rounds_R[best])) for s, best in enumerate(best_S)]

    def rounds_to_S(self, threshold: float, lower_is_better: bool) -> list[float]:
        """Return the first round at which each seed is at the threshold or better, infinite where it never is."""
        close = 1e-9 * abs(threshold)  # percent of a fraction is rounded
        there_SR = self.values_SR <= threshold + close if lower_is_better else self.values_SR >= threshold - close
        return [float(self.rounds_R[there_R.argmax()]) if there_R.any() else math.inf for there_R in there_SR]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Curves of several settings; ``against`` is what is drawn to the right, ``named`` is the metric with its group's name."""

    study: Study
    curves: tuple[Curve, ...]
    threshold: float | None
    against: str
    named: str
    caption: str
    notes: tuple[str, ...]

    def table(self) -> Table:
        """Return a line per setting; in CSV a line per setting, seed and round."""
        study, rows, threshold = self.study, [], self.threshold
        columns = [study.corner, study.heads, "seeds", "final", "peak", "peak at round"]
        columns += [] if threshold is None else [f"rounds to {threshold:g}"]
        numbers: list[Sequence[Any]] = [("row", "column", "seed", "round", study.metric)]
        for curve in self.curves:
            peaks, rounds = zip(*curve.peak_S(study.lower_is_better), strict=True)
            means = [cell_of(values, curve.seeds, study.std).shown(study.percent) for values in (curve.final_S, peaks)]
            line = [curve.row, curve.column, str(len(curve.seeds)), *means, f"{statistics.median(rounds):g}"]
            if threshold is not None:
                reached = curve.rounds_to_S(threshold, study.lower_is_better)
                middle, there = statistics.median(reached), sum(map(math.isfinite, reached))
                line.append(f"{f'{middle:g}' if math.isfinite(middle) else '-'} ({there} of {len(reached)})")
            rows.append(line)
            for seed, values_R in zip(curve.seeds, curve.values_SR.tolist(), strict=True):
                values = zip(curve.rounds_R.tolist(), values_R, strict=True)
                numbers += [(curve.row, curve.column, seed, round, value) for round, value in values]
        shown, label = distinguishing_columns(columns, rows, names=2), f"curves {study.metric}"
        return Table(self.caption, **shown, notes=self.notes, label=label, numbers=numbers)


def curves_of(runs: Sequence[Run], *, threshold: float | None = None, against: str = "round", **asked: Any) -> Curves:
    """Return how a metric went by round in every setting; a note names settings whose seeds share no round with a value.

    ``runs`` and ``asked`` are as for ``Study``. ``threshold`` is in the table's unit, percent for accuracies. ``against`` says
    what is drawn to the right, one of ``AGAINST``. Bytes are those that all clients together have received and sent.
    ``sim/clock`` is the simulated clock of runs with devices.

    Raises:
        ConfigError: as ``Study``, or if in no setting the seeds share a round with a value, or if a run has not measured
            ``against``.
        FedFacetError: if a run's ``metrics.csv`` cannot be read.
        ValueError: as ``Study``.
    """
    study = Study(runs, **asked)
    metric, notes, curves = study.metric, study.notes(by_round=True), []
    if study.percent and threshold is not None and 0 < threshold < 1:
        notes.append(
            f"The threshold is {threshold:g} %, because `{metric}` is in percent here: write {100 * threshold:g} for "
            f"{100 * threshold:g} %."
        )
    for row, column in in_columns(study.groups):
        members = study.groups[row, column]
        measured = [run.curve(metric) for run in members]
        shared = sorted(set.intersection(*map(set, measured)))
        if not shared:
            notes.append(f"`{row}, {column}` is not shown, because its seeds share no round with a value.")
            continue
        if any(len(of_seed) > len(shared) for of_seed in measured):
            notes.append(f"`{row}, {column}` shows {len(shared)} of its rounds, those in which all its seeds have a value.")
        values_SR = np.array([[of_seed[round] for round in shared] for of_seed in measured]) * (100 if study.percent else 1)
        seeds = tuple(run.seed for run in members)
        curves.append(Curve(row, column, seeds, np.array(shared), values_SR, _places(members, shared, against)))
    if not curves:
        raise ConfigError(
            f"Expected seeds that share a round with a value of {metric!r}, but in no setting they do: name another metric."
        )
    caption = _caption_of(metric, threshold, study.std) + caption_of(study.finished, [metric], ["last"], command=study.command)
    return Curves(study, tuple(curves), threshold, against, named(study.finished, metric), caption, tuple(notes))


def draw_curves(curves: Curves, path: Path) -> None:
    """Draw mean and standard deviation by round, a panel per column."""
    unit = " (%)" if curves.study.percent else ""
    plot_bands(
        bands_of(curves), f"{axis_name(curves.named)}{unit}", path, threshold=curves.threshold, across=AGAINST[curves.against]
    )


def bands_of(curves: Curves) -> dict[str, list[Band]]:
    """Return what is drawn: the mean over seeds and one standard deviation around it, a panel per column."""
    panels: dict[str, list[Band]] = {}
    for curve in curves.curves:
        mean_R = curve.values_SR.mean(axis=0)
        alone = len(curve.seeds) == 1
        std_R = np.zeros_like(mean_R) if alone else curve.values_SR.std(axis=0, ddof=curves.study.std == "sample")
        name = curve.column if as_number(curve.column) is None else f"{curves.study.heads} {curve.column}"
        panels.setdefault(name, []).append(Band(curve.row, curve.places_R, mean_R, mean_R - std_R, mean_R + std_R))
    return panels


def _places(members: Sequence[Run], rounds: Sequence[int], against: str) -> NDArray[np.float64]:
    """Return where some rounds are drawn; minutes and megabytes are means over the runs."""
    if against == "round":
        return np.array(rounds, dtype=np.float64)
    places = [_megabytes(run) if against == "bytes" else run.curve(against) for run in members]
    if lacking := [run.path for run, of_run in zip(members, places, strict=True) if not set(rounds) <= of_run.keys()]:
        what, remedy = ("counts of floats", "") if against == "bytes" else ("a simulated clock", "train with `devices`, or ")
        raise ConfigError(
            f"Expected runs with {what} for --against {against}, but {lacking[0]} has none: {remedy}leave it out by --where."
        )
    mean_R: NDArray[np.float64] = np.array([[of_run[round] for round in rounds] for of_run in places]).mean(axis=0)
    return mean_R if against == "bytes" else mean_R / 60


def _megabytes(run: Run) -> dict[int, float]:
    """Return round -> the megabytes that all clients together have received and sent by then, answers to questions included."""
    curves = [curve for name in _FLOATS if (curve := run.curve(name))]
    total, by_round = 0.0, {}
    for round in sorted(curves[0]) if curves else ():
        total += _MEGABYTES_PER_FLOAT * sum(curve.get(round, 0.0) for curve in curves)
        by_round[round] = total
    return by_round


def _caption_of(metric: str, threshold: float | None, std: str) -> str:
    shown = (
        "Final: the value of the last round in which all seeds of the setting have one. Peak: the best of their rounds and, as "
        "a median over seeds, which round that is"
    )
    if metric.startswith(("test/", "personal_test/")):
        shown += "; nobody could have stopped there, because it is found on test data"
    if threshold is not None:
        shown += (
            f". Rounds to {threshold:g}: the first measured round there, as a median over seeds, and how many seeds get there"
        )
    return f"{shown}. Mean ± {std} standard deviation over seeds. "
