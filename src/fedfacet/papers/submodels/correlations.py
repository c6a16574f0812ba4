"""The thesis' tables 7 and 8: whether attacks agree on settings, and whether small clients are more exposed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from fedfacet.analysis.audits import KINDS
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import check_audits, check_seeds, finished_of, ordered
from fedfacet.analysis.writers import Table
from fedfacet.errors import ConfigError

LEAST_SAMPLES = 400
"""Clients with fewer do not count in table 8: an attacker knows fewer than 4 of their samples."""

PRINTED: Any = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Tables 7 and 8 as the thesis prints them."""

_SETTING = ("capacity", "capacity.num_whole", "submodel", "submodel.coupled", "model.width")
_PREFIX = KINDS["clients"]


@dataclass(frozen=True, slots=True)
class Correlation:
    """Pearson's r over some points, with its 95 % interval by Fisher's transform, which takes points for independent.

    ``printed`` is the thesis' number; NaN where it has none.
    """

    table: int
    dataset: str
    what: str
    r: float
    low: float
    high: float
    num_points: int
    printed: float


def correlations(runs: Sequence[Run]) -> list[Correlation]:
    """Return what finished runs have for tables 7 and 8.

    Source: the thesis, sections 4.7.3 and 4.8.1. Table 7's correlations are over settings, each a mean over seeds: this is not
    said there, but follows from table 24, whose rows give the printed numbers. Table 8's are over the clients of all runs with
    one network that everybody trains as a whole.

    Raises:
        ConfigError: if no run has finished, audits of a run do not agree, a setting has a seed twice, or there are fewer than
            three points for everything.
    """
    finished = finished_of(runs)
    found = []
    for dataset in ordered({str(run.setting("dataset")) for run in finished}):
        here = [run for run in finished if str(run.setting("dataset")) == dataset]
        found += [*_of_attacks(dataset, here), *_of_sizes(dataset, here)]
    if not found:
        raise ConfigError(
            "Expected three settings that two of loss_threshold, lira and trajectory were made on, or three clients with "
            f"{LEAST_SAMPLES} samples that loss_threshold was made on where everybody trains the whole model, but "
            f"{len(finished)} runs have fewer: attack more with attack.py."
        )
    return found


def correlations_table(found: Sequence[Correlation], command: str) -> Table:
    """Return a line per correlation."""
    rows = []
    for one in found:
        interval = "-" if math.isnan(one.low) else f"[{one.low:.2f}, {one.high:.2f}]"
        printed = "-" if math.isnan(one.printed) else f"{one.printed:.2f}"
        rows.append([str(one.table), one.dataset, one.what, f"{one.r:.2f}", interval, str(one.num_points), printed])
    caption = (
        "Pearson's correlations, as in the thesis, tables 7 and 8, with 95 % intervals by Fisher's transform. Points are "
        f"settings in table 7, each a mean over seeds, and clients of all runs in table 8. Made with `{command}`."
    )
    notes = [
        "Intervals take points for independent, which clients of one run are not, nor the same client in several.",
        "Correlations over settings say nothing of whether attacks agree on samples or clients.",
        "Advantages are at the threshold that an attacker finds on the samples that it knows, as in the thesis' code.",
    ]
    return Table(caption, ["table", "data set", "between", "r", "95 %", "points", "thesis"], rows, names=3, notes=notes)


def _of_attacks(dataset: str, runs: Sequence[Run]) -> list[Correlation]:
    """Return table 7's: per pair of attacks and measure, over settings."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault(tuple(str(run.setting(key)) for key in _SETTING), []).append(run)
    for place, members in groups.items():
        check_seeds(" / ".join(place), members)
    found = []
    for attacks, printed in PRINTED["attacks"].items():
        for column, number in printed.items():
            names = [f"{_PREFIX}/{attack}/{column}" for attack in attacks.split(" and ")]
            for name in names:
                check_audits(runs, name, ("last",))
            points = [
                [statistics.fmean(run.at("last").get(name, math.nan) for run in members) for name in names]
                for members in groups.values()
            ]
            published = number if dataset == "cifar10" else math.nan
            found += _correlation(7, dataset, f"{attacks}, {column}", points, published)
    return found


def points_of_sizes(runs: Sequence[Run]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the points of table 8 and figure 7a: data set -> width -> samples and advantage of every client of every run.

    Counted are finished runs with a network that all clients train as a whole, and clients that are large enough.

    Raises:
        ConfigError: if audits of a run do not agree.
    """
    name = f"{_PREFIX}/loss_threshold/advantage"
    points: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for run in finished_of(runs):
        if run.setting("capacity") == "whole" and (width := run.setting("model.width")) is not None:
            check_audits([run], name, ("last",))
            if found := _clients(run, name):
                points.setdefault(str(run.setting("dataset")), {}).setdefault(width, []).extend(found)
    return {dataset: {width: points[dataset][width] for width in ordered(points[dataset])} for dataset in ordered(points)}


def _of_sizes(dataset: str, runs: Sequence[Run]) -> list[Correlation]:
    """Return table 8's: per width of a network that all clients train as a whole, over clients."""
    printed: Mapping[str, float] = PRINTED["sizes"].get(dataset, {})
    found = []
    for width, points in points_of_sizes(runs).get(dataset, {}).items():
        logs = [(math.log10(size), value) for size, value in points]
        what = f"log10 of samples and advantage, width {width}"
        found += _correlation(8, dataset, what, logs, printed.get(width, math.nan))
    return found


def _clients(run: Run, name: str) -> list[tuple[int, float]]:
    """Return the number of samples and the advantage of loss_threshold of every client that is large enough."""
    audits = [audit for audit in run.audits if audit.round == run.at("last").get("round") and name in audit.metrics]
    rows = audits[0].rows if audits else ()
    return [
        (int(row["num_samples"]), float(row["advantage"]))
        for row in rows
        if (row["attack"], type(row["client"])) == ("loss_threshold", int)
        if row["num_samples"] >= LEAST_SAMPLES and row["advantage"] is not None
    ]


def _correlation(table: int, dataset: str, what: str, points: Sequence[Sequence[float]], printed: float) -> list[Correlation]:
    """Return a correlation; nothing where fewer than three points are finite, or all are alike."""
    finite = np.array([point for point in points if all(map(math.isfinite, point))]).reshape(-1, 2)
    if len(finite) < 3 or (np.ptp(finite, axis=0) == 0).any():
        return []
    result = stats.pearsonr(finite[:, 0], finite[:, 1])
    low, high = result.confidence_interval(0.95) if len(finite) > 3 else (math.nan, math.nan)
    return [Correlation(table, dataset, what, float(result.statistic), float(low), float(high), len(finite), printed)]
