"""Two settings compared seed by seed from Python, as ``report --compare`` compares rows: ``fedfacet.compare(a, b)``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedfacet.analysis.notes import listed
from fedfacet.analysis.paired import LEVEL, PairedDifference, paired_difference, smallest_p
from fedfacet.analysis.runs import Run, find_runs
from fedfacet.analysis.study import MOMENTS, finished_of, in_percent, smaller_is_better
from fedfacet.arguments import check_choice
from fedfacet.errors import ConfigError
from fedfacet.history import FitResult, TrackedFederation
from fedfacet.metrics.direction import lower_is_better, main_metric
from fedfacet.records import validation_rank

_FEWEST = next(n for n in range(1, 17) if smallest_p(n) < LEVEL)
"""Seeds with which the permutation test can find a difference at all."""


@dataclass(frozen=True, slots=True, repr=False)
class PairedComparison:
    """What ``compare`` finds; printed, it is a few sentences.

    Attributes:
        metric: that was compared, accuracies in percent.
        at: when it was read.
        seeds: that both settings have.
        a: the values of the first setting, in the order of the seeds.
        b: those of the second.
        difference: the statistics of ``a - b``.
        notes: what a reader must know besides.
    """

    metric: str
    at: str
    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    difference: PairedDifference
    notes: tuple[str, ...]

    @property
    def significant(self) -> bool:
        """Whether the p-value of the permutation test is below 0.05."""
        return self.difference.p_permutation < LEVEL

    def __repr__(self) -> str:
        """Return the sentences."""
        found, points = self.difference, " points" if in_percent(self.metric) else ""
        number = "{:+.2f}" if points else "{:+.4g}"
        what = f"{self.metric} ({self.at}), a - b: {number.format(found.mean)}{points}"
        pairs = f"paired by seed {listed(self.seeds)}"
        if found.n == 1:
            lines = [
                f"{what}, {pairs}.",
                f"One pair has no interval: two seeds have one, and no difference of fewer than {_FEWEST} is significant.",
            ]
        elif math.isnan(found.p_permutation):
            lines = [f"{what}, {pairs}.", "A value is missing or infinite, so there is no interval."]
        else:
            low, high = (number.format(bound) for bound in found.t_interval)
            lines = [
                f"{what}, 95 % interval [{low}, {high}], p = {found.p_permutation:.2g}, {pairs}.",
                self._verdict(),
                *self._seeds_needed(),
            ]
        return "\n".join([*lines, *self.notes])

    def _verdict(self) -> str:
        if not self.significant:
            return "Not significant."
        better = (self.difference.mean > 0) is not smaller_is_better(self.metric)
        return f"Significant: {'a' if better else 'b'} is better."

    def _seeds_needed(self) -> list[str]:
        found = self.difference
        if self.significant:
            return []
        resolution = [f"With {found.n} seeds no p-value is below {smallest_p(found.n):.2g}."] if found.n < _FEWEST else []
        if found.mean == 0:
            return [*resolution, "No number of seeds would decide: on average there is no difference."]
        if math.isinf(found.seeds_needed):
            return [*resolution, "More than 10,000 seeds would be needed to decide."]
        return [*resolution, f"About {max(found.seeds_needed, _FEWEST):.0f} seeds would decide, if these are typical."]


def compare(a: Any, b: Any, *, metric: str | None = None, at: str = "last") -> PairedComparison:
    """Compare two settings over the seeds that both have: difference, 95 % interval, p-value, and how many seeds would decide.

    The interval is Student's, the p-value that of the sign-flip permutation test, as in ``report --compare``.

    Args:
        a: what ``fit`` returned, a federation, a ``Run`` or a folder of runs; or a list of these, one for each seed.
        b: the same.
        metric: as a run's summary names it; by default that of the worst group, ``test/acc_worst_group`` where classes are
            predicted.
        at: ``"last"`` round, ``"best"`` round by validation, or ``"tail"``, the mean of the last tenth of the rounds.

    Raises:
        ConfigError: if a run has not finished, a seed is there twice, none is there in both, or no run has the metric.
    """
    check_choice("at", at, tuple(MOMENTS))
    ours, theirs = (_by_seed(name, _runs(given)) for name, given in (("a", a), ("b", b)))
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    if not seeds:
        raise ConfigError(
            f"Expected settings that share a seed, but a has {listed(ours)} and b has {listed(theirs)}: train both with the "
            "same seeds."
        )
    metric = metric or f"test/{main_metric(ours[seeds[0]].at(at))}_worst_group"
    first, second = (tuple(_value(of[seed], metric, at) for seed in seeds) for of in (ours, theirs))
    notes = []
    if unpaired := sorted(ours.keys() ^ theirs.keys()):
        notes.append(f"Left out, as only one setting has them: seeds {listed(unpaired)}.")
    if others := [seed for seed in seeds if _partition_of(ours[seed]) != _partition_of(theirs[seed])]:
        notes.append(f"Other clients or data in a than in b: seeds {listed(others)}.")
    return PairedComparison(metric, at, seeds, first, second, paired_difference(first, second), tuple(notes))


def folders_of(given: Any) -> list[Path]:
    """Return the run folders of what a user gives: paths, runs, federations and what ``fit`` returned, one or a list of them.

    Raises:
        ConfigError: if something has no folder.
    """
    found = []
    for one in _each(given):
        folder = one if isinstance(one, str | Path) else _folder_of(one)
        if folder is None:
            raise ConfigError(f"Expected runs with a folder, but got {type(one).__name__} without: give `federate` a folder.")
        found.append(Path(folder))
    return found


@dataclass(frozen=True)
class _InMemory:
    """A run without a folder, read as ``Run`` is."""

    result: FitResult | TrackedFederation

    @property
    def seed(self) -> int:
        return self.result.seed

    def at(self, moment: str) -> Mapping[str, Any]:
        rows = self.result.metrics
        metric = main_metric(rows[-1])
        if moment == "best":
            sign = -1 if lower_is_better(metric) else 1
            ranked = [(rank, row) for row in rows if (rank := validation_rank(row, metric, sign)) is not None]
            return max(ranked, key=lambda pair: pair[0])[1] if ranked else {}
        tested = [row for row in rows if not math.isnan(row.get(f"test/{metric}", row.get(f"holdout/{metric}", math.nan)))]
        if moment == "tail":
            first = len(rows) - max(1, math.ceil(len(rows) / 10))
            last = [row for row in tested or rows[-1:] if row["round"] > first]
            return {name: sum(row[name] for row in last) / len(last) for name in (last or [{}])[0] if name != "cohort"}
        return (tested or rows)[-1]


def _runs(given: Any) -> list[Run | _InMemory]:
    found: list[Run | _InMemory] = []
    for one in _each(given):
        if isinstance(one, FitResult | TrackedFederation) and _folder_of(one) is None:
            if not one.metrics:
                raise ConfigError("Expected federations that have run, but one has no round: call its `fit` first.")
            found.append(_InMemory(one))
        else:
            found += finished_of(find_runs(folders_of(one)))
    return found


def _each(given: Any) -> Sequence[Any]:
    found = [given] if isinstance(given, str | Path) or not isinstance(given, Sequence) else list(given)
    if not found:
        raise ConfigError("Expected one run or more, but got an empty list: name run folders.")
    return found


def _folder_of(one: Any) -> Path | None:
    """Return the folder of a run, whatever it is; ``None`` where it is in memory only."""
    if isinstance(one, TrackedFederation):
        return one.run_folder.folder if one.run_folder is not None else None
    if not hasattr(one, "folder"):
        raise ConfigError(
            f"Expected what `fit` returned, a federation, a Run or a folder, but got {type(one).__name__}: give one of these."
        )
    folder: Path | None = one.folder
    return folder


def _by_seed(name: str, runs: Sequence[Run | _InMemory]) -> dict[int, Run | _InMemory]:
    seeds = [run.seed for run in runs]
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ConfigError(
            f"Expected one run for each seed, but {name} has seed {twice[0]} twice: give each run another seed, or leave one "
            "out."
        )
    return dict(zip(seeds, runs, strict=True))


def _value(run: Run | _InMemory, metric: str, at: str) -> float:
    measured = run.at(at)
    if metric not in measured:
        near = get_close_matches(metric, list(measured), n=3, cutoff=0.4) or [name for name in measured if "/" in name][:3]
        known = f"use {' or '.join(near)}" if near else "choose another moment by `at`"
        raise ConfigError(f"Expected a metric that the runs have, but got {metric!r}: {known}.")
    value = measured[metric]
    return (math.nan if value is None else float(value)) * (100 if in_percent(metric) else 1)


def _partition_of(run: Run | _InMemory) -> tuple[Any, Any]:
    if isinstance(run, Run):
        told = run.summary or {}
        return told.get("partition_digest"), told.get("data_digest")
    held = run.result.state if isinstance(run.result, TrackedFederation) else run.result
    return held.partition_digest, held.data_digest
