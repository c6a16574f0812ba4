"""Runs -> who was selected: how evenly, how soon everybody, how long somebody waited, and how alike two selectors choose."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.acting import Acting, Chosen, acting_in, compared, not_ranked
from fedfacet.analysis.notes import notes_on_settings, notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, in_columns, ordered, origin_of
from fedfacet.analysis.writers import Table, distinguishing_columns
from fedfacet.errors import FedFacetError
from fedfacet.plots import crowd
from fedfacet.plots.run import TYPE_COLOURS, in_order
from fedfacet.plots.style import saved_figure
from fedfacet.storage.dealt import read_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROUNDS = 100
"""Columns of a heat map; more rounds are put together, or a column would be thinner than a dot."""

_NARROWEST = 2.2  # of heat maps side by side, in inches
_MOST_ROWS, _ACROSS = 6, 3
"""Rows of one column that stand below each other, and columns in which more than these stand."""

_TITLE = "How evenly clients were selected, means over seeds."

_ACTS = (
    "Acts: the share of places (a client in a round) that differ from those of `{0}`, of the same seed. By chance: the share "
    "that would differ if cohorts were drawn uniformly. Where the two are alike, `acts` tells nothing unless `{0}` is the same "
    "selector with its mechanism off. "
)

OVERLAP = (
    "How alike two settings choose: the Jaccard index of their cohorts of the same round and seed, the mean over rounds and "
    "seeds. 1: the same clients, 0: none in common."
)


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
        evenness: (row, column) -> a run each.
        overlap: (row, other row, column) -> the Jaccard index of their cohorts, the mean over rounds, per seed that both have.
        chosen: (row, column) -> who was selected in the run of the lowest seed.
        types: (row, column) -> the type of each client in that run's federation.
        acting: (row, column) -> seed -> how many places differ from those of the row that others are compared with. Empty
            without such a row.
        caption, notes: sentences below the table.
    """

    study: Study
    evenness: Mapping[tuple[str, str], Sequence[Evenness]]
    overlap: Mapping[tuple[str, str, str], Sequence[float]]
    chosen: Mapping[tuple[str, str], Chosen]
    types: Mapping[tuple[str, str], Sequence[str]]
    acting: Mapping[tuple[str, str], Mapping[int, Acting]]
    caption: str
    notes: tuple[str, ...]

    def table(self) -> Table:
        """Return a line per setting, and a matrix of overlaps per column.

        In CSV a line per setting and seed, whose round is empty where somebody was never selected.
        """
        rows = []
        for place in in_columns(self.evenness):
            runs = self.evenness[place]
            clients, never, gini, jain, gap = (
                fmean(getattr(one, name) for one in runs) for name in ("places", "never", "gini", "jain", "gap")
            )
            rounds = [one.coverage for one in runs if one.coverage is not None]
            by = f"{fmean(rounds):.4g}" if len(rounds) == len(runs) else f"{len(rounds)} of {len(runs)} runs"
            heads = self.study.row(place[0]), self.study.column(place[1])
            line = [*heads, str(len(runs)), f"{clients:.3g}", f"{never:.3g}", by, f"{gini:.3f}", f"{jain:.3f}", f"{gap:.4g}"]
            rows.append([*line, *self._acts(place)])
        columns = [self.study.corner, self.study.heads, "seeds", "clients a round", "never", "everybody by", "Gini", "Jain"]
        columns += ["longest gap", *(["acts", "by chance"] if self.acting else [])]
        numbers: list[tuple[Any, ...]] = [
            (
                *("row", "column", "seed", "clients_a_round", "never_selected", "everybody_by_round", "gini", "jain"),
                *("longest_gap", "acts", "acts_by_chance"),
            )
        ]
        for place, runs in self.evenness.items():
            for one in runs:
                everybody = "" if one.coverage is None else one.coverage
                differs = self.acting.get(place, {}).get(one.seed)
                acts = (differs.share, differs.chance) if differs else ("", "")
                numbers.append((*place, one.seed, one.places, one.never, everybody, one.gini, one.jain, one.gap, *acts))
        shown, more = distinguishing_columns(columns, rows, names=2), list(self._overlaps())
        return Table(self.caption, **shown, notes=self.notes, label="selection", numbers=numbers, more=more, title=_TITLE)

    def _acts(self, place: tuple[str, str]) -> list[str]:
        """Return the cells of what differs, two where anything is compared."""
        if not self.acting:
            return []
        runs = self.acting.get(place, {}).values()
        return [f"{fmean(one.share for one in runs):.2f}", f"{fmean(one.chance for one in runs):.2f}"] if runs else ["", ""]

    def _overlaps(self) -> Iterator[Table]:
        """Yield a matrix of settings x settings per column."""
        several = len({column for _, column in self.evenness}) > 1
        for column in ordered({column for _, _, column in self.overlap}):
            heads = ordered({row for one, other, head in self.overlap if head == column for row in (one, other)})
            means = {}
            for (row, other, head), values in self.overlap.items():
                if head == column:
                    means[row, other] = means[other, row] = f"{fmean(values):.2f}"
            names = [self.study.row(head) for head in heads]
            rows = [[name, *(means.get((row, other), "") for other in heads)] for name, row in zip(names, heads, strict=True)]
            yield Table(OVERLAP, [f"overlap, {self.study.column(column)}" if several else "overlap", *names], rows)


def selection_of(runs: Sequence[Run], baseline: str | None = None, **asked: Any) -> Selection:
    """Return who was selected; ``runs`` and ``asked`` are as for ``Study``.

    ``baseline`` is the head of the row that others are compared with; ``None`` for that of ``uniform``, or else of ``all``.

    Raises:
        ConfigError: as ``Study``, or if there is no such row.
        FedFacetError: if a run's ``metrics.csv`` or ``partition.json`` cannot be read.
    """
    study = Study(runs, metric="", **asked)
    types = {place: read_types(members[0].path) for place, members in study.groups.items()}
    found = {place: {run.seed: _chosen(run) for run in members} for place, members in study.groups.items()}
    notes = [*notes_on_unfinished(runs), *notes_on_settings(study.groups, study.keys)]
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
            elif both:
                overlap[row, other, column] = [alikeness(one[seed], two[seed]) for seed in both]
    heads = ordered({row for row, _ in found})
    against, others = compared(heads, next((head for head in heads if study.row(head) == baseline), baseline))
    differing = acting_in(found, against, others)
    notes += not_ranked(differing, against)
    caption = (
        "Means over seeds. Clients a round; clients never selected; the first round after which everybody has been selected; "
        "Gini and Jain of the clients' numbers of rounds; the most rounds in a row that somebody was left out. "
        f"{_ACTS.format(against) if differing else ''}{origin_of(study.finished, study.command)}"
    )
    every = {place: [evenness(chosen_RK, seed) for seed, chosen_RK in by_seed.items()] for place, by_seed in found.items()}
    chosen = {place: by_seed[min(by_seed)] for place, by_seed in found.items()}
    return Selection(study, every, overlap, chosen, types, differing, caption, tuple(notes))


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


def draw_selection(found: Selection, path: Path, fit: float | None = None) -> None:
    """Draw a heat map of rounds and clients into a picture, of the run of each setting's lowest seed.

    Clients are sorted by type, which a strip beside them shows. Many rows of one column stand in three columns. A picture that
    has to ``fit`` a width in inches has no title: its caption says what it shows.
    """
    chosen = found.chosen
    rows, columns = (ordered({place[axis] for place in chosen}) for axis in (0, 1))
    wrapped = len(columns) == 1 and len(rows) > _MOST_ROWS
    across = _ACROSS if fit is None else max(1, int(fit / _NARROWEST))
    height, width = (math.ceil(len(rows) / across), across) if wrapped else (len(rows), len(columns))
    with saved_figure(path, 1.2 + 3.4 * width if fit is None else fit, 0.6 + 1.5 * height) as figure:
        grid: Any = figure.subplots(height, width, squeeze=False)
        panels = [(row, column) for row in rows for column in columns]
        for place, axes in enumerate(grid.ravel()):
            row, column = panels[place] if place < len(panels) else ("", "")
            if (row, column) not in chosen:
                axes.set_axis_off()
                continue
            draw_chosen(axes, chosen[row, column], found.types[row, column])
            if wrapped:
                axes.set_title(found.study.row(row))
            elif row == rows[0] and len(columns) > 1:
                axes.set_title(found.study.column(column))
            if column == columns[0] and not wrapped:
                axes.set_ylabel(found.study.row(row), rotation=0, ha="right", va="center")
            if row in (rows[-width:] if wrapped else rows[-1:]):
                axes.set_xlabel("round")
        many = any(chosen_RK.shape[1] > crowd.MOST_BARS for chosen_RK in chosen.values())
        dark = "(the more the darker), several clients a line" if many else "(dark), a line per client"
        if fit is None:
            figure.suptitle(f"Who was selected {dark}, sorted by type", fontsize=8)


def draw_chosen(axes: "Axes", chosen_RK: NDArray[np.bool_], types: Sequence[str]) -> None:
    """Draw one heat map of rounds and clients; of more than ``crowd.MOST_BARS`` some share a line, black the darkest."""
    from matplotlib.ticker import MaxNLocator

    order = in_order(types)
    rounds, number = len(chosen_RK), len(order)
    edges = crowd.neighbours([number]) if number > crowd.MOST_BARS else None  # of one height each, as the picture's dots are
    parts = (part[:, order].mean(axis=0) for part in np.array_split(chosen_RK, min(_MOST_ROUNDS, rounds)))
    shares_KR = np.stack([part if edges is None else crowd.means(part, edges) for part in parts], axis=1)
    sorted_types = [types[client] for client in order.tolist()]
    darkest = 1.0
    if edges is not None:
        darkest = float(shares_KR.max()) or 1.0
    axes.imshow(shares_KR, aspect="auto", cmap="Greys", vmin=0, vmax=darkest, extent=(0.5, rounds + 0.5, number, 0))
    for kind in dict.fromkeys(sorted_types):
        start, count = sorted_types.index(kind), sorted_types.count(kind)
        strip: dict[str, Any] = {"color": TYPE_COLOURS[kind], "clip_on": False, "linewidth": 0}
        axes.barh(start + count / 2, -0.06 * rounds, height=count, left=0.5, **strip)
        axes.text(0.5 - 0.03 * rounds, start + count / 2, kind, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0.5 - 0.06 * rounds, rounds + 0.5), ylim=(number, 0), yticks=[])
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True).tick_values(0, rounds)
    axes.set_xticks([tick for tick in ticks if 1 <= tick <= rounds])
    axes.spines[:].set_visible(False)


def _chosen(run: Run) -> Chosen:
    saved = run.summary or {}
    number = saved.get("num_clients") or len(saved.get("participation_counts") or ())
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
