"""Runs -> the tables of a page that no other report has."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedfacet.analysis.groups import name_of_group, named
from fedfacet.analysis.runs import Run, differing_keys, spelled
from fedfacet.analysis.study import MOMENTS, commits_of, hardware_of, meaning_of, moments_of, ordered
from fedfacet.analysis.tables import Cell, Means, cell_over_seeds
from fedfacet.analysis.writers import Marked, Table
from fedfacet.errors import CheckpointError

MOST_CLIENTS = 1000
"""Lines of a table; more clients are not listed."""

_MOST_VALUES, _LONGEST = 8, 120
"""Of one key: values that are listed, and characters of each."""

Rows = Mapping[str, Sequence[Run]]
"""Row -> its runs in one column, in the order of their seeds."""


def accuracies_table(means: Mapping[str, Means], column: str, runs: Sequence[Run], at: str, std: str) -> Table:
    """Return several metrics side by side.

    Args:
        means: metric -> its means; all have the same rows.
        column: whose cells are shown.
        runs: those that have finished.
        at: as for ``Study``.
        std: as for ``Study``.
    """
    first = next(iter(means.values()))
    lines: list[list[str | Marked]] = [[row] for row in first.rows]
    over, low = [], []
    for metric, of_metric in means.items():
        shown = [place for place, one in enumerate(of_metric.columns, start=1) if one.name == column]
        over.append((named(runs, metric), len(shown)))
        low += [of_metric.columns[place - 1].at for place in shown]
        for line, cells in zip(lines, of_metric.table().rows, strict=True):
            line += [cells[place] for place in shown]
    directions = {bool(of_metric.lower_is_better) for of_metric in means.values()}
    caption = meaning_of(runs, list(means), moments_of(runs, at), std, directions.pop() if len(directions) == 1 else None)
    if directions:
        caption += " Per column, the best is bold, the second underlined."
    notes = tuple(dict.fromkeys(note for of_metric in means.values() for note in of_metric.notes))
    return Table(caption, [first.corner, *low], lines, notes=notes, over=over)


def _shown_group(runs: list[Run], key: str) -> str:
    """Return a group's name, or its numbers where no name can be read, of which the page's notes tell."""
    with contextlib.suppress(CheckpointError):
        if (name := name_of_group(runs, key)) is not None:
            return name
    return key.removeprefix("test/acc_group/")


def groups_table(rows: Rows, moment: str, std: str) -> Table | None:
    """Return the accuracy in each group of the test set, a line per group; ``None`` where runs have not measured it."""
    runs = [run for of_row in rows.values() for run in of_row]
    keys = sorted({key for run in runs for key in run.at(moment) if key.startswith("test/acc_group/")}, key=_numbers)
    if not keys:
        return None
    lines: list[list[str | Marked]] = [[_shown_group(runs, key)] for key in keys]
    for of_row in rows.values():
        cells = [cell_over_seeds(of_row, key, moment, percent=True, std=std) for key in keys]
        means = [f"{cell.mean:.2f}" for cell in cells]
        worst = min((float(mean) for mean in means if mean != "nan"), default=None)
        for line, cell, mean in zip(lines, cells, means, strict=True):
            line.append(Marked(_told(cell), "bold") if worst is not None and float(mean) == worst else _told(cell))
    caption = (
        f"`test/acc_group` in percent, {MOMENTS[moment]}. Mean ± {std} standard deviation over seeds. The worst of each column "
        "is bold."
    )
    return Table(caption, ["group", *rows], lines)


_OWN = {"_min": "worst client", "": "mean", "_max": "best client"}
_FAIRNESS = ("worst client", "worst 10 %", "mean", "best 10 %", "best client")
_SPREADS = {
    "client_fairness/acc": (
        "The global model on what each client holds out.",
        dict(zip(("_worst", "_worst_tenth", "_mean", "_best_tenth", "_best"), _FAIRNESS, strict=True)),
    ),
    "test/acc_own": ("Each client's own model on a test set with the client's own shares of groups.", _OWN),
    "test/acc": ("Each client's own model on the whole test set.", _OWN),
    "personal_test/acc": ("Each client's model after training on.", {"_min": "worst client", "_mean": "mean"}),
}
"""Accuracies of each client: how their names begin -> what they are of, and how their names end -> what that is."""


def clients_tables(rows: Rows, corner: str, moment: str, std: str) -> Iterator[Table]:
    """Yield how accuracy spreads over clients, a line per setting, wherever runs have measured it."""
    for start, (what, measures) in _SPREADS.items():
        cells = {
            row: [cell_over_seeds(of_row, start + end, moment, percent=True, std=std) for end in measures]
            for row, of_row in rows.items()
        }
        if any(of_row[0].seeds for of_row in cells.values()):  # of the worst client
            caption = (
                f"`{start}` in percent over clients, {MOMENTS[moment]}. {what} Mean ± {std} standard deviation over seeds."
            )
            lines = [[row, *map(_told, of_row)] for row, of_row in cells.items()]
            yield Table(caption, [corner, *measures.values()], lines)


def participation_table(rows: Rows, types: Mapping[str, Sequence[str]]) -> Table | None:
    """Return how often each client took part, a line per client; ``None`` where no run counted it.

    ``types`` are those of the clients, by row.
    """
    counts: dict[str, list[float]] = {}
    for row, runs in rows.items():
        of_runs = [(run.summary or {}).get("participation_counts") or [] for run in runs]
        if of_runs and of_runs[0] and len(set(map(len, of_runs))) == 1:
            counts[row] = [sum(of_client) / len(of_runs) for of_client in zip(*of_runs, strict=True)]
    if not counts:
        return None
    number = max(map(len, counts.values()))
    known = {tuple(types[row]) for row in counts if row in types}
    shown: list[tuple[str, Sequence[str]]] = [("type", known.pop())] if len(known) == 1 else []
    shown += [(row, [f"{mean:.4g}" for mean in of_row]) for row, of_row in counts.items()]
    lines = [
        [str(client), *(of_client[client] if client < len(of_client) else "" for _, of_client in shown)]
        for client in range(min(number, MOST_CLIENTS))
    ]
    notes = [f"Only the first {MOST_CLIENTS:,} of {number:,} clients are listed."] if number > MOST_CLIENTS else []
    return Table(
        "In how many rounds each client's update arrived, mean over seeds.",
        ["client", *(head for head, _ in shown)],
        lines,
        notes=notes,
    )


def differences_table(runs: Sequence[Run]) -> Table | None:
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
    return Table(caption, ["key", "values"], lines, words=True) if lines else None


def runs_table(runs: Sequence[Run], keys: Sequence[str]) -> Table:
    """Return a line per run, also of those that have not finished."""
    digests = ("model", "partition", "data")
    heads = ["run", *keys, "seed", "status", *(f"{name} digest" for name in digests), "commit", "versions", "hardware"]
    lines = []
    for run in runs:
        saved: Mapping[str, Any] = run.summary or {}
        lines.append([
            spelled(run.path),
            *("-" if (value := run.setting(key)) is None else _short(value) for key in keys),
            *(str(run.seed), run.progress),
            *(spelled(saved.get(f"{name}_digest") or "-") for name in digests),
            ", ".join(commits_of([run])),
            ", ".join(f"{name} {value}" for name, value in versions_of(run).items()) or "-",
            ", ".join(hardware_of([run])) or "-",
        ])  # fmt: skip
    return Table("Every run, and the sha256 of what it was made of and came to.", heads, lines, words=True)


def versions_of(run: Run) -> dict[str, str]:
    """Return the libraries that a run was made with, and their versions."""
    versions = (run.summary or {}).get("versions")
    return {spelled(name): spelled(value) for name, value in versions.items()} if isinstance(versions, dict) else {}


def _told(cell: Cell) -> str:
    return cell.shown(percent=True) if cell.seeds else "missing"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _numbers(key: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d{1,9}", key)], key
