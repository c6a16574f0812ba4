"""Runs -> a table that compares settings with one of them, seed by seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedfacet.analysis.notes import listed, notes_on, notes_on_unfinished
from fedfacet.analysis.paired import LEVEL, PairedDifference, holm, paired_difference, smallest_p
from fedfacet.analysis.runs import Run
from fedfacet.analysis.tables import (
    caption_of,
    check_keys,
    check_metric,
    finished_of,
    group_runs,
    in_percent,
    moments_of,
    ordered,
)
from fedfacet.analysis.writers import csv_of, latex_of, latex_text, markdown_of, markdown_text
from fedfacet.arguments import check_choice
from fedfacet.errors import ConfigError
from fedfacet.plots.forest import Difference, plot_forest

FEWEST_PAIRED = 5
"""Seeds that two settings share where they are compared unasked; fewer say next to nothing."""


class Line(NamedTuple):
    """A setting against the baseline, read at one moment.

    ``difference`` is setting minus baseline, in the table's unit. ``p`` is the p-value of the test that was chosen,
    ``p_corrected`` that after Holm's correction over all lines.
    """

    row: str
    column: str
    at: str
    seeds: tuple[int, ...]
    difference: PairedDifference
    p: float
    p_corrected: float

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below 0.05."""
        return self.p_corrected < LEVEL


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings compared with a ``baseline``; ``corner`` and ``heads`` name the keys of rows and columns."""

    baseline: str
    corner: str
    heads: str
    metric: str
    lines: tuple[Line, ...]
    percent: bool
    lower_is_better: bool
    caption: str
    notes: tuple[str, ...]

    def verdict(self, line: Line) -> str:
        """Return ``better``, ``worse`` or ``not significant``."""
        if not line.significant:
            return "not significant"
        return "better" if (line.difference.mean > 0) is not self.lower_is_better else "worse"


def compare_with(
    runs: Sequence[Run],
    baseline: str,
    *,
    rows: Sequence[str] = ("selector",),
    columns: Sequence[str] = ("experiment",),
    metric: str = "test/acc_worst_group",
    at: str = "last",
    test: str = "permutation",
    lower_is_better: bool = False,
    command: str | None = None,
) -> Comparison:
    """Compare every row with the row ``baseline``, in each column, over the seeds that both have.

    Differences are paired by seed, because runs of one seed share the partition's and the model's draws. See
    ``PairedDifference`` for the statistics and ``holm`` for the correction, which is over all lines of the table.

    ``runs``, ``rows``, ``columns``, ``metric``, ``at``, ``lower_is_better`` and ``command`` are as in ``make_table``.
    ``baseline`` is the head of a row there: ``"uniform"``, or ``"uniform / fedavg"`` for two keys. ``test`` says whose p-values
    are corrected, those of ``"permutation"`` or ``"t"``.

    Raises:
        ConfigError: as ``make_table``, or if there is no such row or nothing to compare it with.
        ValueError: if ``at`` or ``test`` is none of the above.
    """
    check_choice("test", test, ("permutation", "t"))
    check_keys(runs, (*rows, *columns))
    finished = finished_of(runs)
    moments = moments_of(finished, at)
    check_metric(finished, metric, moments)
    groups, percent = group_runs(finished, rows, columns), in_percent(metric)
    heads = ordered({row for row, _ in groups})
    if baseline not in heads:
        raise ConfigError(f"Expected a row to compare with, but got {baseline!r}: name one of {', '.join(map(repr, heads))}.")
    notes = [*notes_on_unfinished(runs), *notes_on(groups, metric, moments, (*rows, *columns))]
    compared: list[tuple[str, str, str, tuple[int, ...], PairedDifference]] = []
    for column in ordered({column for _, column in groups}):
        for row in heads:
            if row == baseline or (row, column) not in groups:
                continue
            if (baseline, column) not in groups:
                notes.append(f"`{row}, {column}` is not compared: `{baseline}` has no finished run there.")
                continue
            ours, theirs = ({run.seed: run for run in groups[one, column]} for one in (row, baseline))
            seeds = tuple(sorted(ours.keys() & theirs.keys()))
            if unpaired := sorted(ours.keys() ^ theirs.keys()):
                notes.append(f"`{row}, {column}` leaves out seeds that it or `{baseline}` lacks: {listed(unpaired)}.")
            for moment in moments:
                a, b = (
                    [of[seed].at(moment).get(metric, math.nan) * (100 if percent else 1) for seed in seeds]
                    for of in (ours, theirs)
                )
                compared.append((row, column, moment, seeds, paired_difference(a, b)))
    if not compared:
        raise ConfigError(f"Expected a column that {baseline!r} and another row share, but there is none: choose by --columns.")
    p_values = [difference.p(test) for *_, difference in compared]
    lines = tuple(Line(*one, p, corrected) for one, p, corrected in zip(compared, p_values, holm(p_values), strict=True))
    notes += _note_on_resolution(lines) if test == "permutation" else _notes_on_no_spread(lines)
    said = _said_of(test, baseline, lines, lower_is_better) + caption_of(finished, [metric], moments, None, None, command)
    corner, names = " / ".join(rows), " / ".join(columns)
    return Comparison(baseline, corner, names, metric, lines, percent, lower_is_better, said, tuple(notes))


def usual_baseline(runs: Sequence[Run], rows: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the row that others are compared with where nobody names one: of the selector ``uniform``, or else the first.

    ``None`` where no other row shares ``FEWEST_PAIRED`` seeds with it in a column; arguments and errors are ``group_runs``'.
    """
    seeds = {place: {run.seed for run in members} for place, members in group_runs(runs, rows, columns).items()}
    heads = ordered({row for row, _ in seeds})
    baseline = next((row for row in heads if "uniform" in row.split(" / ")), heads[0])
    shared = [len(of & seeds.get((baseline, column), set())) for (row, column), of in seeds.items() if row != baseline]
    return baseline if max(shared, default=0) >= FEWEST_PAIRED else None


def _note_on_resolution(lines: Sequence[Line]) -> list[str]:
    """Warn where the permutation test has too few seeds to separate anything."""
    counted, most = sum(not math.isnan(line.p) for line in lines), max(len(line.seeds) for line in lines)
    if not counted or counted * smallest_p(most) < LEVEL:
        return []
    enough = next((f"{n} seeds or more" for n in range(most, 17) if counted * smallest_p(n) < LEVEL), "more seeds")
    return [
        f"With {most} seeds no p-value of the permutation test is below {smallest_p(most):.2g}, and the correction is over "
        f"{_lines(counted)}: nothing can be significant here. Run {enough}, choose fewer lines by --where, or take --test t, "
        "which assumes differences of a normal distribution."
    ]


def _notes_on_no_spread(lines: Sequence[Line]) -> list[str]:
    """Name once, whatever the moments, each line whose differences are all the same one, which the t test takes for certain."""
    certain = {(line.row, line.column): len(line.seeds) for line in lines if line.p == 0}
    return [
        f"`{row}, {column}` differs by the same in all {num_seeds} seeds, so the t test sees no spread and its p-value is 0: "
        "take --test permutation, or run more seeds."
        for (row, column), num_seeds in certain.items()
    ]


def _said_of(test: str, baseline: str, lines: Sequence[Line], lower_is_better: bool) -> str:
    tested = "sign-flip permutation test" if test == "permutation" else "paired t test"
    return (
        f"Differences from `{baseline}`, paired by seed. 95 % intervals by Student's t and by the percentile bootstrap. "
        f"Two-sided p-values of the {tested}, with Holm's correction over "
        f"{_lines(sum(not math.isnan(line.p) for line in lines))}; not significant: a corrected p of {LEVEL} or more, "
        f"better: {'lower' if lower_is_better else 'higher'}. Seeds to decide: for a power of 80 % of the t test at this mean "
        "and spread, uncorrected. "
    )


def _lines(number: int) -> str:
    return f"{number} {'line' if number == 1 else 'lines'}"


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    grid = comparison_grid(comparison, markdown_text, "**{}**")
    return markdown_of(grid, comparison.caption, comparison.notes, flush_left=num_names(comparison))


def comparison_latex(comparison: Comparison) -> str:
    r"""Return the comparison as a LaTeX float that needs ``\usepackage{booktabs}``."""
    grid = comparison_grid(comparison, latex_text, r"\textbf{{{}}}")
    label = f"{comparison.metric} against {comparison.baseline}"
    return latex_of(grid, comparison.caption, comparison.notes, label=label, flush_left=num_names(comparison))


def comparison_csv(comparison: Comparison) -> str:
    """Return the comparison as CSV, unrounded."""
    head = (
        *("row", "column", "at", "baseline", "n", "seeds", "difference", "std", "t_low", "t_high", "bootstrap_low"),
        *("bootstrap_high", "p_t", "p_permutation", "p_corrected", "seeds_needed", "verdict"),
    )
    lines = []
    for line in comparison.lines:
        found = line.difference
        seeds = " ".join(map(str, line.seeds))
        numbers = (found.mean, found.std, *found.t_interval, *found.bootstrap_interval, found.p_t, found.p_permutation)
        ends = (line.p_corrected, found.seeds_needed, comparison.verdict(line))
        lines.append((line.row, line.column, line.at, comparison.baseline, found.n, seeds, *numbers, *ends))
    return csv_of([head, *lines])


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the comparison as a forest plot, a panel per column and moment."""
    panels: dict[str, list[Difference]] = {}
    for line in comparison.lines:
        found = line.difference
        drawn = Difference(line.row, found.mean, found.t_interval, found.bootstrap_interval, comparison.verdict(line))
        panels.setdefault(f"{line.column}, {line.at}", []).append(drawn)
    unit = "percentage points" if comparison.percent else comparison.metric
    plot_forest(panels, comparison.baseline, f"difference, {unit}", path)


def num_names(comparison: Comparison) -> int:
    """Return how many of the first columns of a comparison's grid are names."""
    return 1 + _several(comparison)["column"] + _several(comparison)["at"]


def _several(comparison: Comparison) -> Mapping[str, bool]:
    return {name: len({getattr(line, name) for line in comparison.lines}) > 1 for name in ("column", "at")}


def comparison_grid(comparison: Comparison, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the lines of a comparison's cells, the heads first; every cell has gone through ``escape``, ``bold`` around it."""
    several, unit = _several(comparison), ".2f" if comparison.percent else ".4g"
    names = {"row": comparison.corner, "column": comparison.heads, "at": "at"}
    shown = [name for name in names if several.get(name, True)]
    measures = ("seeds", "difference", "95 %, t", "95 %, bootstrap", "p", "p, Holm", "seeds to decide", "verdict")
    grid = [[escape(head) for head in (*(names[name] for name in shown), *measures)]]
    for line in comparison.lines:
        found, verdict = line.difference, comparison.verdict(line)
        numbers = [
            str(found.n),
            f"{found.mean:+{unit}}",
            *(f"[{low:{unit}}, {high:{unit}}]" for low, high in (found.t_interval, found.bootstrap_interval)),
            *(f"{p:.2g}" for p in (line.p, line.p_corrected)),
            f"{found.seeds_needed:.0f}" if math.isfinite(found.seeds_needed) else "-",
        ]
        told = bold.format(escape(verdict)) if line.significant else escape(verdict)
        grid.append([*(escape(getattr(line, name)) for name in shown), *map(escape, numbers), told])
    return grid
