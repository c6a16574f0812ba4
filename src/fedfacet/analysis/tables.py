"""Runs -> a table of mean and standard deviation over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedfacet.analysis.notes import measured
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, caption_of, head_of, ordered
from fedfacet.analysis.writers import Marked, Table

PAPER = "paper"  # the `at` of a column with a paper's numbers


class Cell(NamedTuple):
    """One metric over the seeds of one setting, in the table's unit.

    ``mean`` is NaN where a seed has no value or there is no seed, ``std`` below two seeds. ``seeds`` ascend; they are empty
    where no run measured the metric.
    """

    mean: float
    std: float
    seeds: tuple[int, ...]

    def shown(self, percent: bool) -> str:
        """Return the mean, and the standard deviation where there is one."""
        spread = f" ± {_printed(self.std, percent)}" if math.isfinite(self.std) else ""
        return _printed(self.mean, percent) + spread


class Column(NamedTuple):
    """A setting, read ``at`` one of ``MOMENTS``, or as the ``"paper"`` prints it.

    ``lower_is_better`` overrides the table's, unless it is ``None``.
    """

    name: str
    at: str
    lower_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """Means over seeds by row and column.

    ``corner`` holds the keys whose values head the rows. One setting's last and best round are neighbouring columns. Where
    ``lower_is_better`` is ``None``, a column has no best value, because its rows are of different kinds. ``caption`` says what
    the numbers are and where they come from; ``notes`` says what a reader must know before trusting a cell, one sentence each.
    """

    corner: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    percent: bool
    lower_is_better: bool | None
    caption: str
    notes: tuple[str, ...]
    metric: str

    def table(self) -> Table:
        """Return a line per row; in CSV a line per cell, whose ``n`` is 0 and whose values are empty without runs."""
        several = len({column.at for column in self.columns}) > 1
        heads = [f"{column.name}, {column.at}" if several else column.name for column in self.columns]
        lines: list[list[str | Marked]] = [[row] for row in self.rows]
        numbers: list[Sequence[Any]] = [("row", "column", "mean", "std", "n", "seeds", "at")]
        for column in self.columns:
            # Ranks follow the printed digits: what looks equal is marked equal.
            means = {row: _printed(self.cells[row, column].mean, self.percent) for row in self.rows}
            lower_is_better = self.lower_is_better if column.lower_is_better is None else column.lower_is_better
            ranks = sorted({float(mean) for mean in means.values() if mean != "nan"}, reverse=not lower_is_better)
            # A lone number, or one that all rows share, has won against nobody.
            won = len(ranks) > 1 and lower_is_better is not None
            marks = dict(zip(ranks, ("bold", "underlined"), strict=False)) if won else {}
            for line, (row, mean) in zip(lines, means.items(), strict=True):
                cell = self.cells[row, column]
                text, rest = cell.shown(self.percent), "" if column.at == PAPER else f" ({len(cell.seeds)})"
                if mark := marks.get(float(mean)):
                    line.append(Marked(text, mark, rest))
                elif column.at == PAPER:
                    line.append("-" if math.isnan(cell.mean) else text)
                else:
                    line.append(text + rest if cell.seeds else "missing")
        for row in self.rows:
            for column in self.columns:
                cell = self.cells[row, column]
                values = [cell.mean, cell.std] if cell.seeds or math.isfinite(cell.mean) else ["", ""]
                number = "" if column.at == PAPER else len(cell.seeds)
                numbers.append((row, column.name, *values, number, " ".join(map(str, cell.seeds)), column.at))
        label = f"{self.metric} by {self.corner}"
        return Table(self.caption, [self.corner, *heads], lines, notes=self.notes, label=label, numbers=numbers)


def make_table(runs: Sequence[Run], **asked: Any) -> Means:
    r"""Return the mean and standard deviation of a metric over the seeds of each setting, by default at the last and the best.

    .. math::
        \bar{m} = \frac{1}{n} \sum_s m_s, \quad
        \sigma = \sqrt{\frac{1}{n - d} \sum_s (m_s - \bar{m})^2},

    with d = 0 (``"population"``, as in FedDiverse, arXiv:2504.11216) or d = 1 (``"sample"``). A cell is NaN as soon as one of
    its seeds is: leaving that seed out would turn a failed run into a better mean.

    ``asked`` and errors are those of ``Study``.
    """
    study = Study(runs, **{"at": "both", **asked})
    metric, percent, best = study.metric, study.percent, study.lower_is_better
    # Rows and columns of unfinished runs stay, so that the reader sees their empty cells.
    rows = ordered({head_of(run, study.rows) for run in runs})
    names = ordered({head_of(run, study.columns) for run in runs})
    columns = tuple(Column(name, moment) for name in names for moment in study.moments)
    cells = {
        (row, column): cell_over_seeds(
            study.groups.get((row, column.name), []), metric, column.at, percent=percent, std=study.std
        )
        for row in rows
        for column in columns
    }
    notes = study.notes()
    if study.at in ("both", "all") and "best" not in study.moments:
        unfinished = any(not run.finished for run in runs)
        notes.insert(int(unfinished), "No run has a best round by validation, so it is not shown.")
    caption = caption_of(study.finished, [metric], study.moments, study.std, best, study.command)
    return Means(study.corner, rows, columns, cells, percent, best, caption, tuple(notes), metric)


def cell_over_seeds(members: Sequence[Run], metric: str, moment: str, *, percent: bool, std: str) -> Cell:
    """Return a metric over the runs of a cell, which are in the order of their seeds; empty if none of them measured it."""
    if not any(measured(run, metric, moment) for run in members):
        return Cell(math.nan, math.nan, ())
    values = [run.at(moment).get(metric, math.nan) * (100 if percent else 1) for run in members]
    return cell_of(values, [run.seed for run in members], std)


def cell_of(values: Sequence[float], seeds: Sequence[int], std: str) -> Cell:
    """Return the mean of one value per seed, and their standard deviation where they are several and finite."""
    spread = math.nan
    # The statistics module cannot take the deviation of infinities or NaN.
    if len(values) > 1 and all(map(math.isfinite, values)):
        spread = statistics.pstdev(values) if std == "population" else statistics.stdev(values)
    return Cell(statistics.fmean(values) if values else math.nan, spread, tuple(seeds))


def _printed(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"
