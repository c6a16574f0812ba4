"""Runs -> who was selected: how evenly, how soon everybody, how long somebody waited, and how alike two selectors choose."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.notes import notes_on_settings, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.tables import check_keys, finished_of, group_runs, ordered, origin_of
from fedfacet.analysis.writers import csv_of, latex_of, latex_text, markdown_of, markdown_text
from fedfacet.errors import FedFacetError
from fedfacet.storage.dealt import read_types

Chosen = NDArray[np.bool_]
"""Who was selected when, shape (R, K): rounds x clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Evenness:
    r"""How evenly clients were selected in a run.

    Attributes:
        seed: of the run.
        places: clients a round, the mean over rounds.
        never: how many clients were never selected.
        coverage: the first round after which everybody has been selected; ``None`` if there was none.
        gini: of the clients' numbers of rounds, 0 where all are alike, towards 1 where one client has all; NaN without any.
        jain: :math:`(\sum_k c_k)^2 / (K \sum_k c_k^2)` of the same, 1 where all are alike, 1 / K where one has all.
        gap: the most rounds in a row in which one client was not selected.
    """

    seed: int
    places: float
    never: int
    coverage: int | None
    gini: float
    jain: float
    gap: int


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Who was selected by each setting.

    Attributes:
        corner, heads: what rows and columns stand for.
        evenness: (row, column) -> a run each.
        overlap: (row, other row, column) -> the Jaccard index of their cohorts, the mean over rounds, per seed that both have.
        chosen: (row, column) -> who was selected in the run of the lowest seed.
        types: (row, column) -> the type of each client in that run's federation.
        caption, notes: sentences below the table.
    """

    corner: str
    heads: str
    evenness: Mapping[tuple[str, str], Sequence[Evenness]]
    overlap: Mapping[tuple[str, str, str], Sequence[float]]
    chosen: Mapping[tuple[str, str], Chosen]
    types: Mapping[tuple[str, str], Sequence[str]]
    caption: str
    notes: tuple[str, ...]


def selection_of(
    runs: Sequence[Run],
    *,
    rows: Sequence[str] = ("selector",),
    columns: Sequence[str] = ("experiment",),
    command: str | None = None,
) -> Selection:
    """Return who was selected; ``runs``, ``rows``, ``columns`` and ``command`` are as in ``make_table``.

    Raises:
        ConfigError: as ``make_table``.
        FedFacetError: if a run's ``metrics.csv`` or ``partition.json`` cannot be read.
    """
    check_keys(runs, (*rows, *columns))
    finished = finished_of(runs)
    found: dict[tuple[str, str], dict[int, Chosen]] = {}
    types: dict[tuple[str, str], Sequence[str]] = {}
    groups = group_runs(finished, rows, columns)
    for (row, column), members in groups.items():
        members = sorted(members, key=lambda run: run.seed)
        types[row, column] = read_types(members[0].path)
        found[row, column] = {run.seed: _chosen(run) for run in members}
    notes = [*notes_on_unfinished(runs), *notes_on_settings(groups, (*rows, *columns))]
    overlap = {}
    for column in ordered({column for _, column in found}):
        for row, other in itertools.combinations(ordered({row for row, head in found if head == column}), 2):
            one, two = found[row, column], found[other, column]
            both = sorted(one.keys() & two.keys())
            sizes = [(one[seed].shape[1], two[seed].shape[1]) for seed in both]
            if unlike := [pair for pair in sizes if pair[0] != pair[1]]:
                number, others = unlike[0]
                notes.append(
                    f"`{row}` and `{other}` have {number} and {others} clients on `{column}`: how alike they choose is not "
                    "shown."
                )
            else:
                overlap[row, other, column] = [alikeness(one[seed], two[seed]) for seed in both]
    caption = (
        "Means over seeds. Clients a round; clients never selected; the first round after which everybody has been selected; "
        "Gini and Jain of the clients' numbers of rounds; the most rounds in a row that somebody was left out. "
        f"{origin_of(finished, command)}"
    )
    return Selection(
        " / ".join(rows),
        " / ".join(columns),
        {key: [evenness(chosen_RK, seed) for seed, chosen_RK in by_seed.items()] for key, by_seed in found.items()},
        {key: values for key, values in overlap.items() if values},
        {key: by_seed[min(by_seed)] for key, by_seed in found.items()},
        types,
        caption,
        tuple(notes),
    )


def evenness(chosen_RK: Chosen, seed: int = 0) -> Evenness:
    """Measure how evenly clients were selected.

    Example:
        >>> turns = evenness(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=bool))
        >>> turns.coverage, turns.gap, round(turns.gini, 4), round(turns.jain, 4)
        (3, 2, 0.1667, 0.8889)
    """
    counts_K = chosen_RK.sum(axis=0)
    total, number = int(counts_K.sum()), len(counts_K)
    seen_K = chosen_RK.any(axis=0)
    ranked_K = np.sort(counts_K)
    # G = sum_k (2k - K - 1) c_(k) / (K sum c), with c sorted up.
    gini = float((2 * np.arange(1, number + 1) - number - 1) @ ranked_K) / (number * total) if total else math.nan
    return Evenness(
        seed,
        float(chosen_RK.sum(axis=1).mean()),
        int((~seen_K).sum()),
        int(chosen_RK.argmax(axis=0).max()) + 1 if seen_K.all() else None,
        gini,
        total**2 / (number * float(counts_K @ counts_K)) if total else math.nan,
        _longest_gap(chosen_RK),
    )


def alikeness(one_RK: Chosen, other_RK: Chosen) -> float:
    r"""Return the Jaccard index of two runs' cohorts, :math:`|A \cap B| / |A \cup B|`, the mean over the rounds that both have.

    Two empty cohorts are alike.

    Example:
        >>> alikeness(np.array([[1, 1, 0], [1, 0, 0]], dtype=bool), np.array([[0, 1, 1], [1, 0, 0]], dtype=bool))
        0.6666666666666666
    """
    rounds = min(len(one_RK), len(other_RK))
    both_R = (one_RK[:rounds] & other_RK[:rounds]).sum(axis=1)
    any_R = (one_RK[:rounds] | other_RK[:rounds]).sum(axis=1)
    return float(np.where(any_R, both_R / np.maximum(any_R, 1), 1.0).mean())


def selection_markdown(found: Selection) -> str:
    """Return a line per setting as Markdown, and a matrix of overlaps per column."""
    caption = f"{found.caption}\n\n{OVERLAP}" if found.overlap else found.caption
    text = markdown_of(selection_grid(found, markdown_text), caption, found.notes, flush_left=1 + several_columns(found))
    matrices = [markdown_of(grid, "", ()).rstrip() + "\n" for grid in overlap_grids(found, markdown_text)]
    return "\n".join([text, *matrices])


def selection_latex(found: Selection) -> str:
    r"""Return a line per setting as a LaTeX float that needs ``\usepackage{booktabs}``."""
    flush_left = 1 + several_columns(found)
    return latex_of(selection_grid(found, latex_text), found.caption, found.notes, label="selection", flush_left=flush_left)


def selection_csv(found: Selection) -> str:
    """Return a line per setting and seed; the round is empty where somebody was never selected."""
    lines: list[tuple[object, ...]] = [
        ("row", "column", "seed", "clients_a_round", "never_selected", "everybody_by_round", "gini", "jain", "longest_gap")
    ]
    for (row, column), runs in found.evenness.items():
        for one in runs:
            by = "" if one.coverage is None else one.coverage
            lines.append((row, column, one.seed, one.places, one.never, by, one.gini, one.jain, one.gap))
    return csv_of(lines)


def draw_selection(found: Selection, path: Path) -> None:
    """Draw who was selected in the run of each setting's lowest seed into a picture."""
    from fedfacet.plots.selection import plot_selections

    rows, columns = (ordered({key[place] for key in found.chosen}) for place in (0, 1))
    panels = {(row, column): found.chosen[row, column] for row in rows for column in columns if (row, column) in found.chosen}
    plot_selections(panels, found.types, path)


OVERLAP = (
    "How alike two settings choose: the Jaccard index of their cohorts of the same round and seed, the mean over rounds and "
    "seeds. 1: the same clients, 0: none in common."
)


def _chosen(run: Run) -> Chosen:
    told = run.summary or {}
    number = told.get("num_clients") or len(told.get("participation_counts") or ())
    cohorts = run.cohorts()
    if any(client_id >= number for cohort in cohorts for client_id in cohort):
        raise FedFacetError(f"Expected cohorts of {number} clients in {run.path}, but some are others: leave that folder out.")
    chosen_RK = np.zeros((len(cohorts), number), dtype=bool)
    for round, cohort in enumerate(cohorts):
        chosen_RK[round, list(cohort)] = True
    return chosen_RK


def _longest_gap(chosen_RK: Chosen) -> int:
    longest, waited_K = 0, np.zeros(chosen_RK.shape[1], dtype=np.int64)
    for chosen_K in chosen_RK:
        waited_K = np.where(chosen_K, 0, waited_K + 1)
        longest = max(longest, int(waited_K.max(initial=0)))
    return longest


def several_columns(found: Selection) -> bool:
    """Tell whether settings differ in what heads columns; a line then has two names."""
    return len({column for _, column in found.evenness}) > 1


def selection_grid(found: Selection, escape: Callable[[str], str]) -> list[list[str]]:
    """Return the lines of a selection's cells, the heads first; every cell has gone through ``escape``."""
    several = several_columns(found)
    heads = [found.corner, *([found.heads] if several else []), "seeds", "clients a round", "never", "everybody by", "Gini"]
    grid = [list(map(escape, [*heads, "Jain", "longest gap"]))]
    for column in ordered({column for _, column in found.evenness}):
        for row in ordered({row for row, head in found.evenness if head == column}):
            runs = found.evenness[row, column]
            mean = {
                name: sum(getattr(one, name) for one in runs) / len(runs) for name in ("places", "never", "gini", "jain", "gap")
            }
            rounds = [one.coverage for one in runs if one.coverage is not None]
            by = f"{sum(rounds) / len(rounds):.4g}" if len(rounds) == len(runs) else f"{len(rounds)} of {len(runs)} runs"
            line = [row, *([column] if several else []), str(len(runs)), f"{mean['places']:.3g}", f"{mean['never']:.3g}", by]
            grid.append(list(map(escape, [*line, f"{mean['gini']:.3f}", f"{mean['jain']:.3f}", f"{mean['gap']:.4g}"])))
    return grid


def overlap_grids(found: Selection, escape: Callable[[str], str]) -> list[list[list[str]]]:
    """Return a matrix of settings x settings per column, escaped as ``selection_grid``."""
    grids = []
    for column in ordered({column for _, _, column in found.overlap}):
        rows = ordered({row for one, other, head in found.overlap if head == column for row in (one, other)})
        grid = [list(map(escape, [f"overlap, {column}" if several_columns(found) else "overlap", *rows]))]
        for row in rows:
            cells = [row]
            for other in rows:
                values = found.overlap.get((row, other, column)) or found.overlap.get((other, row, column))
                cells.append("" if row == other or not values else f"{sum(values) / len(values):.2f}")
            grid.append(list(map(escape, cells)))
        grids.append(grid)
    return grids
