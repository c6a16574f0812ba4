"""Runs -> a table that compares settings with one of them, seed by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedfacet.analysis.notes import listed
from fedfacet.analysis.paired import LEVEL, PairedDifference, holm, paired_difference, smallest_p
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, caption_of, group_runs, in_columns, ordered
from fedfacet.analysis.writers import Marked, Table, distinguishing_columns
from fedfacet.arguments import check_choice
from fedfacet.errors import ConfigError
from fedfacet.plots.style import BLUE, VERMILION, saved_panels

FEWEST_PAIRED = 5
"""Seeds that two settings share where they are compared unasked; fewer say next to nothing."""

_VERDICTS = {"better": BLUE, "worse": VERMILION, "not significant": "0.55"}
_WIDE = 5.0
"""A line whose interval is so many times as long as the median of its panel would make the others unreadable."""


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
    """Settings compared with a ``baseline``."""

    study: Study
    baseline: str
    lines: tuple[Line, ...]
    caption: str
    notes: tuple[str, ...]

    def verdict(self, line: Line) -> str:
        """Return ``better``, ``worse`` or ``not significant``."""
        if not line.significant:
            return "not significant"
        return "better" if (line.difference.mean > 0) is not self.study.lower_is_better else "worse"

    def table(self) -> Table:
        """Return a line per setting and moment."""
        unit, rows, numbers = ".2f" if self.study.percent else ".4g", [], []
        for line in self.lines:
            found, verdict = line.difference, self.verdict(line)
            cells = [
                *(line.row, line.column, line.at, str(found.n), f"{found.mean:+{unit}}"),
                *(f"[{low:{unit}}, {high:{unit}}]" for low, high in (found.t_interval, found.bootstrap_interval)),
                *(f"{p:.2g}" for p in (line.p, line.p_corrected)),
                f"{found.seeds_needed:.0f}" if math.isfinite(found.seeds_needed) else "-",
            ]
            rows.append([*cells, Marked(verdict, "bold") if line.significant else verdict])
            numbers.append((
                *(line.row, line.column, line.at, self.baseline, found.n, " ".join(map(str, line.seeds)), found.mean),
                *(found.std, *found.t_interval, *found.bootstrap_interval, found.p_t, found.p_permutation),
                *(line.p_corrected, found.seeds_needed, verdict),
            ))  # fmt: skip
        columns = (
            *(self.study.corner, self.study.heads, "at", "seeds", "difference", "95 %, t", "95 %, bootstrap", "p", "p, Holm"),
            *("seeds to decide", "verdict"),
        )
        head = (
            *("row", "column", "at", "baseline", "n", "seeds", "difference", "std", "t_low", "t_high", "bootstrap_low"),
            *("bootstrap_high", "p_t", "p_permutation", "p_corrected", "seeds_needed", "verdict"),
        )
        label = f"{self.study.metric} against {self.baseline}"
        shown = distinguishing_columns(columns, rows, names=3)
        return Table(self.caption, **shown, notes=self.notes, label=label, numbers=[head, *numbers])


def compare_with(runs: Sequence[Run], baseline: str, *, test: str = "permutation", **asked: Any) -> Comparison:
    """Compare every row with the row ``baseline``, in each column, over the seeds that both have.

    Differences are paired by seed, because runs of one seed share the partition's and the model's draws. See
    ``PairedDifference`` for the statistics and ``holm`` for the correction, which is over all lines of the table.

    ``baseline`` is the head of a row: ``"uniform"``, or ``"uniform / fedavg"`` for two keys. ``test`` says whose p-values are
    corrected, those of ``"permutation"`` or ``"t"``. ``runs`` and ``asked`` are as for ``Study``.

    Raises:
        ConfigError: as ``Study``, or if there is no such row or nothing to compare it with.
        ValueError: as ``Study``, or if ``test`` is none of the above.
    """
    check_choice("test", test, ("permutation", "t"))
    study = Study(runs, **asked)
    groups = study.groups
    heads = ordered({row for row, _ in groups})
    if baseline not in heads:
        raise ConfigError(f"Expected a row to compare with, but got {baseline!r}: name one of {', '.join(map(repr, heads))}.")
    notes = study.notes()
    compared: list[tuple[str, str, str, tuple[int, ...], PairedDifference]] = []
    for row, column in in_columns(groups):
        if row == baseline:
            continue
        if (baseline, column) not in groups:
            notes.append(f"`{row}, {column}` is not compared: `{baseline}` has no finished run there.")
            continue
        ours, theirs = ({run.seed: run for run in groups[one, column]} for one in (row, baseline))
        seeds = tuple(sorted(ours.keys() & theirs.keys()))
        if unpaired := sorted(ours.keys() ^ theirs.keys()):
            notes.append(f"`{row}, {column}` leaves out seeds that it or `{baseline}` lacks: {listed(unpaired)}.")
        for moment in study.moments:
            a, b = ([study.value(of[seed], moment) for seed in seeds] for of in (ours, theirs))
            compared.append((row, column, moment, seeds, paired_difference(a, b)))
    if not compared:
        raise ConfigError(f"Expected a column that {baseline!r} and another row share, but there is none: choose by --columns.")
    p_values = [difference.p(test) for *_, difference in compared]
    lines = tuple(Line(*one, p, corrected) for one, p, corrected in zip(compared, p_values, holm(p_values), strict=True))
    notes += _note_on_resolution(lines) if test == "permutation" else _notes_on_no_spread(lines)
    origin = caption_of(study.finished, [study.metric], study.moments, command=study.command)
    return Comparison(study, baseline, lines, _caption_of(test, baseline, lines, study.lower_is_better) + origin, tuple(notes))


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


def _caption_of(test: str, baseline: str, lines: Sequence[Line], lower_is_better: bool) -> str:
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


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw the comparison as a forest plot into a picture, a panel per column and moment."""
    panels: dict[str, list[tuple[str, PairedDifference, str]]] = {}
    for line in comparison.lines:
        panels.setdefault(f"{line.column}, {line.at}", []).append((line.row, line.difference, comparison.verdict(line)))
    unit = "percentage points" if comparison.study.percent else comparison.study.metric
    plot_forest(panels, comparison.baseline, f"difference, {unit}", path)


def plot_forest(
    panels: Mapping[str, Sequence[tuple[str, PairedDifference, str]]], baseline: str, label: str, path: Path
) -> None:
    """Draw differences from a baseline into a picture; a panel has (name, difference, verdict) a line.

    A point is a mean difference, the thin line its interval by Student's t, the thick one that by the bootstrap. Differences
    that are not significant are grey. A line far longer than the others of its panel leaves the frame. An arrow stands where it
    does, and its mean too if that is outside. ``label`` names the unit.
    """
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for lines in panels.values() for name, *_ in lines))

    def size(rows: int, columns: int) -> tuple[float, float]:
        return max(5.0, 1.4 + 2.3 * columns), 0.7 + rows * (0.55 + 0.2 * len(names))

    with saved_panels(path, len(panels), size, sharey=True) as (figure, grid):
        for axes, (panel, lines) in zip(grid, panels.items(), strict=True):
            axes.axvline(0, color="0.4", linewidth=0.9, zorder=1)
            placed = {len(names) - names.index(name): (found, _VERDICTS[verdict]) for name, found, verdict in lines}
            for y, (found, colour) in placed.items():
                axes.hlines(y, *found.t_interval, color=colour, linewidth=1, zorder=2)
                axes.hlines(y, *found.bootstrap_interval, color=colour, linewidth=3, alpha=0.5, zorder=2)
                axes.plot(found.mean, y, "o", color=colour, markersize=4, zorder=3)
            axes.set(title=panel, ylim=(0.4, len(names) + 0.6))
            _frame(axes, placed)
            axes.set_yticks(range(len(names), 0, -1), names)
        for axes in grid[-3:]:
            axes.set_xlabel(label)
        handles = [Line2D([], [], color=colour, marker="o", markersize=4) for colour in _VERDICTS.values()]
        labels = [f"better than {baseline}", f"worse than {baseline}", "not significant"]
        figure.legend(handles, labels, loc="outside upper center", ncols=3)


def _frame(axes: Any, lines: Mapping[int, tuple[PairedDifference, str]]) -> None:
    """Fit the frame to differences at their heights, in their colours, and mark those that leave it."""
    lengths = {y: one.t_interval[1] - one.t_interval[0] for y, (one, _) in lines.items() if math.isfinite(one.t_interval[0])}
    typical = median(lengths.values()) if lengths else 0.0
    wide = [y for y, length in lengths.items() if length > _WIDE * typical > 0]
    if not wide:
        return
    usual = [one for y, (one, _) in lines.items() if y not in wide]
    ends = [0.0, *(end for one in usual for end in (one.mean, *one.t_interval, *one.bootstrap_interval))]
    low, high = (limit(end for end in ends if math.isfinite(end)) for limit in (min, max))
    room = 0.08 * (high - low)
    low, high = low - room, high + room
    axes.set_xlim(low, high)
    for y in wide:
        one, colour = lines[y]
        for leaves, x, marker in ((one.t_interval[0] < low, low, "<"), (one.t_interval[1] > high, high, ">")):
            if leaves:
                axes.plot(x, y, marker, color=colour, markersize=5, clip_on=False, zorder=4)
        if not low <= one.mean <= high:
            x, right, side = (low, 6, "left") if one.mean < low else (high, -6, "right")
            style: dict[str, Any] = {"ha": side, "va": "bottom", "color": colour, "fontsize": "small"}
            axes.annotate(f"{one.mean:+.1f}", (x, y), (right, 2), textcoords="offset points", **style)
