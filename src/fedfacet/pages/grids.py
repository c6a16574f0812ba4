"""Runs -> the tables of a page."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from fedfacet.analysis.comparison import Comparison, comparison_grid, num_names
from fedfacet.analysis.curves import Curves, curves_grid
from fedfacet.analysis.groups import name_of_group, named
from fedfacet.analysis.runs import Run, differing_keys, spelled
from fedfacet.analysis.selection import OVERLAP, Selection, overlap_grids, selection_grid
from fedfacet.analysis.tables import (
    MOMENTS,
    Table,
    cell_over_seeds,
    commits_of,
    hardware_of,
    meaning_of,
    moments_of,
    ordered,
)
from fedfacet.analysis.writers import cell_text, table_grid
from fedfacet.errors import CheckpointError

MOST_CLIENTS = 1000
"""Lines of a table; more clients are not listed."""

_MOST_VALUES, _LONGEST = 8, 120
"""Of one key: values that are listed, and characters of each."""

Groups = Mapping[tuple[str, str], Sequence[Run]]
"""(row, column) -> the runs there, in the order of their seeds."""


class Head(NamedTuple):
    """The head of one or more columns, over one or more lines of heads."""

    text: str
    across: int = 1
    down: int = 1


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a page. Plain texts are escaped when the page is written; ``Markup`` has been.

    Attributes:
        caption: in which backticks enclose names.
        heads: a line of them, or two.
        lines: of cells.
        names: how many of the first cells of a line are its heads.
        notes: sentences as the caption's, below the table.
        words: whether its cells are words rather than numbers.
    """

    caption: str
    heads: Sequence[Sequence[Head]]
    lines: Sequence[Sequence[str]]
    names: int = 1
    notes: Sequence[str] = ()
    words: bool = False


def accuracies_grid(tables: Mapping[str, Table], column: str, runs: Sequence[Run], at: str, std: str) -> Grid:
    """Return several metrics side by side.

    Args:
        tables: metric -> its table; all have the same rows.
        column: whose cells are shown.
        runs: those that have finished.
        at: as in ``make_table``.
        std: as in ``make_table``.
    """
    moments = moments_of(runs, at)
    first = next(iter(tables.values()))
    lines = [[_text(row)] for row in first.rows]
    top, low = [Head(first.corner, down=2)], []
    for metric, table in tables.items():
        shown = [place for place, one in enumerate(table.columns, start=1) if one.name == column]
        top.append(Head(named(runs, metric), across=len(shown)))
        low += [Head(table.columns[place - 1].at) for place in shown]
        grid = table_grid(table, _text, bold="<strong>{}</strong>", underline="<u>{}</u>")[1:]
        for line, cells in zip(lines, grid, strict=True):
            line += [cells[place] for place in shown]
    directions = {bool(table.lower_is_better) for table in tables.values()}
    caption = meaning_of(runs, list(tables), moments, std, directions.pop() if len(directions) == 1 else None)
    if directions:
        caption += " Per column, the best is bold, the second underlined."
    notes = tuple(dict.fromkeys(note for table in tables.values() for note in table.notes))
    return Grid(caption, [top, low], _safe(lines), notes=notes)


def compared_grid(comparison: Comparison) -> Grid:
    """Return a paired comparison."""
    grid = comparison_grid(comparison, _text, "<strong>{}</strong>")
    return _with_heads(comparison.caption, grid, num_names(comparison), comparison.notes)


def curved_grid(curves: Curves) -> Grid:
    """Return where curves end, and how high they get."""
    several = len({curve.column for curve in curves.curves}) > 1
    return _with_heads(curves.caption, curves_grid(curves, _text), 1 + several, curves.notes)


def selection_grids(found: Selection) -> list[Grid]:
    """Return how evenly clients were selected, and how alike settings choose."""
    several = len({column for _, column in found.evenness}) > 1
    grids = [_with_heads(found.caption, selection_grid(found, _text), 1 + several, found.notes)]
    return grids + [_with_heads(OVERLAP, grid, 1, ()) for grid in overlap_grids(found, _text)]


def _shown_group(runs: list[Run], key: str) -> str:
    """Return a group's name, or its numbers where no name can be read, of which the page's notes tell."""
    with contextlib.suppress(CheckpointError):
        if (name := name_of_group(runs, key)) is not None:
            return name
    return key.removeprefix("test/acc_group/")


def groups_grid(groups: Groups, column: str, moment: str, std: str) -> Grid | None:
    """Return the accuracy in each group of the test set, a line per group; ``None`` where runs have not measured it."""
    members = {row: groups[row, column] for row in ordered({row for row, head in groups if head == column})}
    runs = [run for of_row in members.values() for run in of_row]
    keys = sorted({key for run in runs for key in run.at(moment) if key.startswith("test/acc_group/")}, key=_numbers)
    if not keys:
        return None
    lines: list[list[str]] = [[_shown_group(runs, key)] for key in keys]
    for of_row in members.values():
        cells = [cell_over_seeds(of_row, key, moment, percent=True, std=std) for key in keys]
        means = [f"{cell.mean:.2f}" for cell in cells]
        worst = min((float(mean) for mean in means if mean != "nan"), default=None)
        for line, cell, mean in zip(lines, cells, means, strict=True):
            told = cell_text(cell, percent=True) if cell.seeds else "missing"
            line.append(Markup("<strong>{}</strong>").format(told) if worst is not None and float(mean) == worst else told)
    caption = (
        f"`test/acc_group` in percent, {MOMENTS[moment]}. Mean ± {std} standard deviation over seeds. The worst of each column "
        "is bold."
    )
    return Grid(caption, [[Head("group"), *(Head(row) for row in members)]], lines)


_SPREADS = (
    (
        "client_fairness/acc",
        "The global model on what each client holds out.",
        {
            "_worst": "worst client",
            "_worst_tenth": "worst 10 %",
            "_mean": "mean",
            "_best_tenth": "best 10 %",
            "_best": "best client",
        },
    ),
    (
        "test/acc_own",
        "Each client's own model on a test set with the client's own shares of groups.",
        {"_min": "worst client", "": "mean", "_max": "best client"},
    ),
    ("test/acc", "Each client's own model on the whole test set.", {"_min": "worst client", "": "mean", "_max": "best client"}),
    ("personal_test/acc", "Each client's model after training on.", {"_min": "worst client", "_mean": "mean"}),
)
"""Accuracies of each client: what their names begin with, what they are of, and how their names end -> what that is."""


def clients_grids(groups: Groups, column: str, corner: str, moment: str, std: str) -> Iterator[Grid]:
    """Yield how accuracy spreads over clients, a line per setting, wherever runs have measured it."""
    members = {row: groups[row, column] for row in ordered({row for row, head in groups if head == column})}
    for start, what, measures in _SPREADS:
        cells = {
            row: [cell_over_seeds(of_row, start + end, moment, percent=True, std=std) for end in measures]
            for row, of_row in members.items()
        }
        if not any(of_row[0].seeds for of_row in cells.values()):  # of the worst client
            continue
        lines = [
            [row, *(cell_text(c, percent=True) if c.seeds else "missing" for c in of_row)] for row, of_row in cells.items()
        ]
        caption = f"`{start}` in percent over clients, {MOMENTS[moment]}. {what} Mean ± {std} standard deviation over seeds."
        yield Grid(caption, [[Head(corner), *map(Head, measures.values())]], lines)


def participation_grid(groups: Groups, column: str, types: Mapping[tuple[str, str], Sequence[str]]) -> Grid | None:
    """Return how often each client took part, a line per client; ``None`` where no run counted it."""
    counts: dict[str, list[float]] = {}
    for row in ordered({row for row, head in groups if head == column}):
        of_runs = [(run.summary or {}).get("participation_counts") or [] for run in groups[row, column]]
        if of_runs and of_runs[0] and len(set(map(len, of_runs))) == 1:
            counts[row] = [sum(of_client) / len(of_runs) for of_client in zip(*of_runs, strict=True)]
    if not counts:
        return None
    number = max(map(len, counts.values()))
    known = {tuple(types[row, column]) for row in counts if (row, column) in types}
    of_client = known.pop() if len(known) == 1 else None
    lines = [
        [
            str(client),
            *([of_client[client] if client < len(of_client) else ""] if of_client else []),
            *(f"{of_row[client]:.4g}" if client < len(of_row) else "" for of_row in counts.values()),
        ]
        for client in range(min(number, MOST_CLIENTS))
    ]
    notes = [f"Only the first {MOST_CLIENTS:,} of {number:,} clients are listed."] if number > MOST_CLIENTS else []
    heads = [Head("client"), *([Head("type")] if of_client else []), *(Head(row) for row in counts)]
    return Grid("In how many rounds each client's update arrived, mean over seeds.", [heads], lines, notes=notes)


def differences_grid(runs: Sequence[Run]) -> Grid | None:
    """Return the keys in which the configurations differ, with their values; ``None`` where they differ in none."""
    lines = []
    for key in differing_keys(runs):
        counted: dict[str, int] = {}
        for run in runs:
            value = (run.summary or {}).get(key) if key == "partition_digest" else run.setting(key)
            text = "-" if value is None else _short(spelled(value))
            counted[text] = counted.get(text, 0) + 1
        shown = [f"{value} ({counted[value]})" for value in ordered(counted)]
        more = [f"and {len(shown) - _MOST_VALUES} more"] if len(shown) > _MOST_VALUES else []
        lines.append([key, "; ".join([*shown[:_MOST_VALUES], *more])])
    caption = (
        "Keys of the configuration in which the runs differ, and in parentheses how many runs have a value. The option of a "
        "group stands for all that it sets; seed, paths, engine and logger do not count."
    )
    return Grid(caption, [[Head("key"), Head("values")]], lines, words=True) if lines else None


def runs_grid(runs: Sequence[Run], keys: Sequence[str]) -> Grid:
    """Return a line per run, also of those that have not finished."""
    heads = [
        "run",
        *keys,
        "seed",
        "status",
        "model digest",
        "partition digest",
        "data digest",
        "commit",
        "versions",
        "hardware",
    ]
    lines = []
    for run in runs:
        told: Mapping[str, Any] = run.summary or {}
        lines.append(
            [
                spelled(run.path),
                *("-" if (value := run.setting(key)) is None else _short(value) for key in keys),
                str(run.seed),
                run.progress,
                *(spelled(told.get(f"{name}_digest") or "-") for name in ("model", "partition", "data")),
                ", ".join(commits_of([run])),
                ", ".join(f"{name} {value}" for name, value in versions_of(run).items()) or "-",
                ", ".join(hardware_of([run])) or "-",
            ]
        )
    return Grid(
        "Every run, and the sha256 of what it was made of and came to.", [[Head(head) for head in heads]], lines, words=True
    )


def versions_of(run: Run) -> dict[str, str]:
    """Return the libraries that a run was made with, and their versions."""
    versions = (run.summary or {}).get("versions")
    return {spelled(name): spelled(value) for name, value in versions.items()} if isinstance(versions, dict) else {}


def _with_heads(caption: str, grid: Sequence[Sequence[str]], names: int, notes: Sequence[str]) -> Grid:
    head, *lines = _safe(grid)
    return Grid(caption, [[Head(text) for text in head]], lines, names, notes)


def _text(text: str) -> str:
    """Return a text as HTML, but as a plain ``str``, which goes through ``format`` unchanged."""
    return str(escape(text))


def _safe(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Say of cells that they are HTML: every one has gone through ``_text``."""
    return [[Markup(cell) for cell in line] for line in lines]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _numbers(key: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d{1,9}", key)], key
