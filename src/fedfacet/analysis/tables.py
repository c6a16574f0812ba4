"""Runs -> a table of mean and standard deviation over seeds -> Markdown, LaTeX or CSV."""

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import NamedTuple

from fedfacet.analysis.runs import Run, differing_keys
from fedfacet.errors import ConfigError

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


class Cell(NamedTuple):
    """One metric over the seeds of one setting.

    Attributes:
        mean: over the seeds, in percent if the table is; NaN where a seed has no value, or where there is no seed.
        std: over the seeds, in the same unit; NaN below two seeds.
        seeds: in ascending order; empty where there is no run.
    """

    mean: float
    std: float
    seeds: tuple[int, ...]


class Column(NamedTuple):
    """One column of a table: a setting, and the round at which it is read (``"last"`` or ``"best"``)."""

    name: str
    at: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to be written in any form. In its texts, backticks enclose names, as in Markdown.

    Attributes:
        corner: the keys whose values head the rows.
        rows: the heads of the rows, in order.
        columns: in order; one setting's last and best round are neighbours.
        cells: one per row and column.
        percent: whether the values are percentages.
        lower_is_better: whether the smallest value of a column is its best.
        caption: what the numbers are and where they come from.
        notes: what a reader must know before trusting a cell, one sentence each.
    """

    corner: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    percent: bool
    lower_is_better: bool
    caption: str
    notes: tuple[str, ...]


def make_table(
    runs: Sequence[Run],
    *,
    rows: Sequence[str] = ("selector",),
    columns: Sequence[str] = ("experiment",),
    metric: str = "test/acc_worst_group",
    at: str = "both",
    std: str = "population",
    lower_is_better: bool = False,
    command: str | None = None,
) -> Table:
    r"""Return the mean and standard deviation of a metric over the seeds of each setting.

    .. math::
        \bar{m} = \frac{1}{n} \sum_s m_s, \quad
        \sigma = \sqrt{\frac{1}{n - d} \sum_s (m_s - \bar{m})^2},

    with d = 0 (``"population"``, as in FedDiverse, arXiv:2504.11216) or d = 1 (``"sample"``).

    Args:
        runs: finished ones are counted, the others are named in a note.
        rows: config keys as in ``Run.setting`` whose values together head a row.
        columns: as ``rows``, for the columns.
        metric: as a run's summary names it. Accuracies are given in percent, all else as it is.
        at: ``"last"`` round, ``"best"`` round by validation, or ``"both"``.
        std: ``"population"`` or ``"sample"``.
        lower_is_better: whether the smallest value of a column is its best.
        command: what the user typed, for the caption.

    Raises:
        ConfigError: if no run has finished, no run has such a key or metric or a best round, or a cell holds a seed twice.
        ValueError: if ``at`` or ``std`` is none of the above.

    Note:
        A cell is NaN as soon as one of its seeds is: leaving that seed out would turn a failed run into a better mean.
    """
    if at not in ("last", "best", "both"):
        raise ValueError(f"Expected `at` to be 'last', 'best' or 'both', but got {at!r}.")
    if std not in ("population", "sample"):
        raise ValueError(f"Expected `std` to be 'population' or 'sample', but got {std!r}.")
    for key in (*rows, *columns):
        _check_key(runs, key)
    finished = [run for run in runs if run.finished]
    unfinished = [f"`{run.path}` ({run.progress})" for run in runs if not run.finished]
    if not finished:
        raise ConfigError(
            f"Expected at least one finished run, but none of the {len(runs)} has finished: resume {unfinished[0]} first."
        )
    moments = _moments(finished, at)
    _check_metric(finished, metric, moments)

    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(finished, key=lambda run: run.seed):
        groups.setdefault((_head(run, rows), _head(run, columns)), []).append(run)
    for place, members in groups.items():
        _check_seeds(", ".join(place), members)

    percent = re.search(r"(^|[/_])acc($|[/_])", metric) is not None
    # Rows and columns of unfinished runs stay, so that their place is seen to be empty.
    row_heads = _ordered({_head(run, rows) for run in runs})
    table_columns = tuple(Column(name, m) for name in _ordered({_head(run, columns) for run in runs}) for m in moments)
    cells = {
        (row, column): _cell(groups.get((row, column.name), []), metric, column.at, percent=percent, std=std)
        for row in row_heads
        for column in table_columns
    }
    notes = []
    if unfinished:
        notes.append(f"Left out because not finished: {', '.join(unfinished)}.")
    if at == "both" and moments == ("last",):
        notes.append("No run has a best round by validation, so only the last round is shown.")
    notes += _notes(groups, metric, moments)
    return Table(
        corner=" / ".join(rows),
        rows=row_heads,
        columns=table_columns,
        cells=cells,
        percent=percent,
        lower_is_better=lower_is_better,
        caption=_caption(finished, metric, moments, percent, std, lower_is_better, command),
        notes=tuple(notes),
    )


def to_markdown(table: Table) -> str:
    """Return the table, its caption and its notes as Markdown."""
    grid = _grid(table, lambda text: text.replace("|", r"\|"), bold="**{}**", underline="<u>{}</u>")
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for head, *numbers in (grid[0], rule, *grid[1:]):
        padded = [head.ljust(widths[0]), *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))]
        lines.append(f"| {' | '.join(padded)} |")
    notes = [f"- Note: {note}" for note in table.notes]
    return "\n".join([*lines, "", table.caption, *([""] if notes else []), *notes]) + "\n"


def to_latex(table: Table) -> str:
    r"""Return the table as a LaTeX float that needs ``\usepackage{booktabs}``."""
    grid = _grid(table, _latex, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}")
    lines = ["    " + " & ".join(line) + r" \\" for line in grid]
    notes = [rf"  \par\smallskip{{\footnotesize Note: {_latex(note)}}}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(table.caption)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"    \toprule",
            lines[0],
            r"    \midrule",
            *lines[1:],
            r"    \bottomrule",
            r"  \end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def to_csv(table: Table) -> str:
    """Return one line per cell, unrounded and in the table's unit; without runs ``n`` is 0 and the values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std", "n", "seeds", "at"])
    for row in table.rows:
        for column in table.columns:
            cell = table.cells[row, column]
            values = [cell.mean, cell.std] if cell.seeds else ["", ""]
            writer.writerow([row, column.name, *values, len(cell.seeds), " ".join(map(str, cell.seeds)), column.at])
    return text.getvalue()


def _check_key(runs: Sequence[Run], key: str) -> None:
    if any(run.setting(key) is not None for run in runs):
        return
    names = {name for run in runs for name in run.settings}
    groups = sorted(name.removeprefix("choices.") for name in names if name.startswith("choices."))
    known = [*groups, *sorted(name for name in names if not name.startswith("choices."))]
    inner = [name for name in known if name.startswith(f"{key}.")]
    raise ConfigError(
        f"Expected the keys of rows and columns to name single values of the config, but {key!r} "
        + (f"is a group of them: use {_some(inner)}." if inner else f"is none: use {_nearest(key, known)}.")
    )


def _check_metric(runs: Sequence[Run], metric: str, moments: Sequence[str]) -> None:
    known = {name for run in runs for moment in moments for name in run.at(moment)} - {"round"}
    if metric not in known:
        raise ConfigError(f"Expected a metric that the runs have, but got {metric!r}: use {_nearest(metric, sorted(known))}.")


def _check_seeds(place: str, members: Sequence[Run]) -> None:
    for first, second in pairwise(members):
        if first.seed == second.seed:
            differing = differing_keys([first, second])
            raise ConfigError(
                f"Expected one run per seed in a cell, but {place} has seed {first.seed} twice, in {first.path} and "
                f"{second.path}, "
                + (
                    f"which differ in {_some(differing)}: add that to the keys of rows or columns, or leave one of them out."
                    if differing
                    else "with the same config: leave one of them out."
                )
            )


def _moments(runs: Sequence[Run], at: str) -> tuple[str, ...]:
    if at == "last":
        return ("last",)
    if any(run.at("best") for run in runs):
        return ("last", "best") if at == "both" else ("best",)
    if at == "both":
        return ("last",)
    raise ConfigError(
        "Expected runs with a best round by validation, but none of them has validation data: use the last round (--at last)."
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    return _some(get_close_matches(name, known, n=4, cutoff=0.4) or known)


def _some(names: Sequence[str], limit: int = 6) -> str:
    more = f" (and {len(names) - limit} more)" if len(names) > limit else ""
    return ", ".join(f"`{name}`" for name in names[:limit]) + more


def _head(run: Run, keys: Sequence[str]) -> str:
    return " / ".join("-" if (value := run.setting(key)) is None else value for key in keys)


def _ordered(heads: Iterable[str]) -> tuple[str, ...]:
    def numbers_first(head: str) -> list[tuple[bool, float, str]]:
        return [(_number(part) is None, _number(part) or 0.0, part) for part in head.split(" / ")]

    return tuple(sorted(heads, key=numbers_first))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cell(members: Sequence[Run], metric: str, moment: str, *, percent: bool, std: str) -> Cell:
    values = [run.at(moment).get(metric, math.nan) * (100 if percent else 1) for run in members]
    spread = math.nan
    # The statistics module cannot take the deviation of infinities or NaN.
    if len(values) > 1 and all(map(math.isfinite, values)):
        spread = statistics.pstdev(values) if std == "population" else statistics.stdev(values)
    return Cell(statistics.fmean(values) if values else math.nan, spread, tuple(run.seed for run in members))


def _notes(groups: Mapping[tuple[str, str], Sequence[Run]], metric: str, moments: Sequence[str]) -> list[str]:
    notes = []
    all_seeds = {run.seed for members in groups.values() for run in members}
    for place, members in sorted(groups.items()):
        name = f"`{', '.join(place)}`"
        for moment in moments:
            without = [f"`{run.path}`" for run in members if math.isnan(run.at(moment).get(metric, math.nan))]
            if without:
                notes.append(f"{name} is nan because `{metric}` has no value at the {moment} round of {', '.join(without)}.")
        if differing := differing_keys(members):
            notes.append(f"{name} averages runs that differ in {_some(differing)}, not in the seed alone.")
        if lacking := all_seeds - {run.seed for run in members}:
            notes.append(f"{name} lacks seeds that other cells have: {_listed(lacking)}.")
    return notes


def _caption(
    runs: Sequence[Run],
    metric: str,
    moments: Sequence[str],
    percent: bool,
    std: str,
    lower_is_better: bool,
    command: str | None,
) -> str:
    last = _listed(int(run.at("last")["round"]) for run in runs if "round" in run.at("last"))
    rules = {
        "last": f"after the last round ({last})",
        "best": "after the round with the highest worst-group accuracy on validation data",
    }
    rule = "; ".join(f"{moment}: {rules[moment]}" for moment in moments) if len(moments) > 1 else rules[moments[0]]
    sentences = [
        f"`{metric}`{' in percent' if percent else ''}, {rule}. Mean ± {std} standard deviation over seeds, number of seeds in "
        "parentheses.",
        f"Per column, the best ({'lowest' if lower_is_better else 'highest'}) is bold, the second underlined.",
        f"Seeds: {_listed(run.seed for run in runs)}.",
        f"Commit: {', '.join(_distinct(_commit(run) for run in runs))}.",
    ]
    if hardware := _distinct(_hardware(run) for run in runs if run.summary and run.summary.get("hardware")):
        sentences.append(f"Hardware: {' | '.join(hardware)}.")
    if command:
        sentences.append(f"Made with `{command}`.")
    return " ".join(sentences)


def _commit(run: Run) -> str:
    name, dash, rest = str((run.summary or {}).get("git_commit") or "unknown").partition("-")
    return name[:12] + dash + rest


def _hardware(run: Run) -> str:
    hardware = (run.summary or {}).get("hardware")
    return ", ".join(f"{key} {value}" for key, value in hardware.items()) if isinstance(hardware, dict) else str(hardware)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(set(numbers)))


def _distinct(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts))


def _grid(table: Table, escape: Callable[[str], str], *, bold: str, underline: str) -> list[list[str]]:
    several = len({column.at for column in table.columns}) > 1
    heads = [f"{column.name}, {column.at}" if several else column.name for column in table.columns]
    grid = [[escape(head) for head in (table.corner, *heads)]]
    grid += [[escape(row)] for row in table.rows]
    for column in table.columns:
        # Ranks follow the printed digits: what looks equal is marked equal.
        means = {row: _printed(table.cells[row, column].mean, table.percent) for row in table.rows}
        ranks = sorted({float(mean) for mean in means.values() if mean != "nan"}, reverse=not table.lower_is_better)
        # A lone number, or one that all rows share, has won against nobody.
        marks = dict(zip(ranks, (bold, underline), strict=False)) if len(ranks) > 1 else {}
        for line, (row, text) in zip(grid[1:], means.items(), strict=True):
            cell = table.cells[row, column]
            if math.isfinite(cell.std):
                text += f" ± {_printed(cell.std, table.percent)}"
            marked = marks.get(float(means[row]), "{}").format(escape(text))
            line.append(f"{marked} ({len(cell.seeds)})" if cell.seeds else "missing")
    return grid


def _printed(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"


def _latex(text: str) -> str:
    plain = [re.sub(r"[\\~^<>|±&%$#_{}]", lambda match: _LATEX[match[0]], part) for part in text.split("`")]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(plain))
