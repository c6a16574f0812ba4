"""Tables laid out as a paper prints them, with the paper's own numbers beside ours.

A yaml per table, in the paper's own folder, says what is in which row and column, and which numbers the paper prints.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from fedfacet.analysis.notes import beside_the_seed, notes_on, notes_on_unfinished
from fedfacet.analysis.runs import Run, spelled, spellings
from fedfacet.analysis.study import caption_of, check_audits, check_metric, check_seeds, in_percent, moments_of
from fedfacet.analysis.tables import PAPER, SPREAD, Cell, Column, Means, cell_over_seeds
from fedfacet.errors import ConfigError

FOLDER = Path(__file__).parent

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Head:
    """A row or a column of a layout.

    ``where`` is what the configs of its runs say, as in ``Run.setting``; the runs of ``unless`` do not belong here, whatever
    their configs say. ``metric`` is what its cells hold; ``None`` where the other direction or the layout says that.
    """

    where: Mapping[str, str]
    metric: str | None = None
    lower_is_better: bool = False
    unless: "tuple[Head, ...]" = ()

    def __and__(self, other: "Head") -> "Head":
        """Return the head of the cells where two heads meet, for example of a row and a column."""
        lower_is_better = self.lower_is_better or other.lower_is_better
        return Head({**self.where, **other.where}, self.metric or other.metric, lower_is_better, self.unless + other.unless)

    def holds(self, run: Run) -> bool:
        """Tell whether a run belongs here."""
        return run.fits(self.where) and not any(other.holds(run) for other in self.unless)

    def contradicts(self, where: Mapping[str, str]) -> bool:
        """Tell whether no run of these settings belongs here."""
        return any(self.where.get(key, text) not in spellings(text) for key, text in where.items())


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of a paper, as ``PAPER/NAME.yaml`` describes it; ``source`` is where it is printed, ``corner`` heads its rows.

    ``metric`` is what its cells hold where neither row nor column says so, the mean of ``seeds`` runs. ``where`` is what the
    configs of all its runs say, ``usual`` what those of the paper's runs say: where a cell has runs that do, others are not
    counted. Federations (data set, partition and settings) are in the order of the paper, and each has all the columns: a
    single one without a name if the federations are the columns. ``paper`` holds a row's printed numbers in the order of
    federations and, within one, of columns; ``notes`` is what a reader must know of them.
    """

    title: str
    source: str
    corner: str
    metric: str
    seeds: int
    where: Head
    usual: Mapping[str, str]
    federations: Mapping[str, Head]
    columns: Mapping[str, Head]
    rows: Mapping[str, Head]
    paper: Mapping[str, Sequence[Cell]]
    notes: tuple[str, ...]

    def number(self, place: "_Place") -> Cell:
        """Return the paper's number of a cell, NaN where it has none."""
        if place.row not in self.paper or place.federation not in self.federations:
            return _NOTHING
        position = list(self.federations).index(place.federation) * len(self.columns)
        return self.paper[place.row][position + list(self.columns).index(place.column)]


class _Place(NamedTuple):
    """Where a cell is, by the names of its heads."""

    row: str
    federation: str
    column: str

    def column_name(self, layout: Layout) -> str:
        """Return the head of the cell's column; it omits the federation if the paper has one only."""
        said = len(layout.federations) > 1 or self.federation not in layout.federations or not self.column
        return ", ".join(filter(None, (self.federation if said else "", self.column)))


_NOTHING = Cell(math.nan, math.nan, ())


def load_layout(name: str) -> Layout:
    """Return a layout by the name of its file."""
    content, known = _load(name), _federations()
    heads = {part: {key: _head(where) for key, where in content.get(part, {"": {}}).items()} for part in ("columns", "rows")}
    return Layout(
        title=content["title"],
        source=content["source"],
        corner=content["corner"],
        metric=content.get("metric", "test/acc_worst_group"),
        seeds=content.get("seeds", 3),
        where=_head(content.get("where", {})),
        usual=_head(content.get("usual", {})).where,
        federations={federation: known[federation] for federation in content["federations"]},
        paper={row: [_number(printed) for printed in numbers] for row, numbers in content["paper"].items()},
        notes=tuple(content.get("notes", ())),
        **heads,
    )


def make_layout_table(
    runs: Sequence[Run],
    layout: Layout,
    *,
    metric: str | None = None,
    at: str = "last",
    std: str = "population",
    where: Mapping[str, str] | None = None,
    lower_is_better: bool = False,
    command: str | None = None,
) -> Means:
    """Return a table as the paper prints it: ours, and the paper's numbers in columns of their own.

    Federations that are not in the paper's table are put behind its own. Where some of a cell's runs are at the paper's usual
    settings, only those count. A column without any run is left out, the paper's numbers with it, and named in a note.

    Args:
        runs: finished ones are counted; those of other tables may be among them.
        layout: of the table.
        metric: to be shown instead of the layout's, without the paper's numbers then.
        at: ``"last"`` round as in the paper, ``"best"`` round by validation, or as for ``Study``.
        std: ``"population"`` or ``"sample"``.
        where: settings that runs must have to be counted; rows and columns that have others are left out.
        lower_is_better: whether small values of ``metric`` are good; the layout says that of its own metrics.
        command: what the user typed, for the caption.

    Raises:
        ConfigError: if no run is to be counted, a cell holds a seed twice, no run has such a metric, or the layout's rows or
            columns are metrics themselves.
    """
    where = where or {}
    if metric and any(head.metric for head in (*layout.rows.values(), *layout.columns.values())):
        raise ConfigError(
            f"Expected no metric for {layout.source.partition(';')[0]}, whose rows or columns show one each, "
            f"but got {metric!r}: leave --metric out."
        )
    rows, columns, federations = (
        {name: head for name, head in heads.items() if not head.contradicts(where)}
        for heads in (layout.rows, layout.columns, layout.federations)
    )
    runs = [run for run in runs if run.fits(where)]
    # Without a federation a run has the selector and aggregator of a row all the same.
    wanted = (layout.where.where.get("setting", "federated"), "null", None)
    federated = [run for run in runs if run.setting("setting") in wanted]
    federations |= _others(federated, layout)
    places = {
        _Place(row, federation, column): layout.where & federations[federation] & columns[column] & rows[row]
        for row in rows
        for federation in federations
        for column in columns
    }
    members = {place: _members(federated, head, layout.usual) for place, head in places.items()}
    shown_columns = {place.column_name(layout) for place, found in members.items() if found}
    counted = {run.path: run for found in members.values() for run in found}
    strangers = [run for run in runs if run.path not in counted]
    if not (finished := [run for run in counted.values() if run.finished]):
        raise ConfigError(
            f"Expected a finished run that has a cell in {layout.source.partition(';')[0]}, but none of {len(runs)} runs has: "
            "name folders of such runs."
        )
    moments = moments_of(finished, at)
    if metric:
        check_metric(finished, metric, moments)

    cells: dict[tuple[str, Column], Cell] = {}
    by_metric: dict[str, dict[tuple[str, str], list[Run]]] = {}
    for place, head in places.items():
        if (name := place.column_name(layout)) not in shown_columns:
            continue
        seeds = [run for run in members[place] if run.finished]
        check_seeds(f"{place.row}, {name}", seeds)
        shown = metric or head.metric or layout.metric
        check_audits(seeds, shown, moments)
        by_metric.setdefault(shown, {}).update({(place.row, name): seeds} if seeds else {})
        for moment in moments:
            cell = cell_over_seeds(seeds, shown, moment, percent=in_percent(shown), std=std)
            cells[place.row, Column(name, moment, head.lower_is_better or None)] = cell
        # The paper's column is shown where it has a number in any row.
        if metric is None and any(not math.isnan(layout.number(place._replace(row=row)).mean) for row in layout.rows):
            cells[place.row, Column(name, PAPER, head.lower_is_better or None)] = layout.number(place)
    empty = dict.fromkeys(f"`{name}`" for place in places if (name := place.column_name(layout)) not in shown_columns)
    notes = [
        *_missing(places, members, layout.seeds),
        *([f"Left out are the columns that no run has a cell in: {', '.join(empty)}."] if empty else []),
        *notes_on_unfinished(counted.values()),
        *(
            f"{len(strangers)} of {len(runs)} runs have no cell in this table, among them `{run.path}`."
            for run in strangers[:1]
        ),
        *_unlike(places, members),
        *_unusual(counted.values(), layout.usual),
        *(note for shown, groups in by_metric.items() for note in notes_on(groups, shown, moments)),
        *(layout.notes if metric is None else ()),
    ]
    best = lower_is_better if metric or len({head.metric for head in rows.values()}) == 1 else None
    if best is False and (lower := dict.fromkeys(f"`{column.name}`" for _, column in cells if column.lower_is_better)):
        notes.append(f"The best is the lowest in {', '.join(lower)}.")
    about = caption_of(finished, list(by_metric), moments, std, lower_is_better=best, command=command)
    return Means(
        corner=layout.corner,
        rows=tuple(rows),
        columns=tuple(dict.fromkeys(column for _, column in cells)),
        cells=cells,
        percent=metric is None or in_percent(metric),
        lower_is_better=best,
        caption=f"{layout.title}, as in {layout.source}. {about}",
        notes=tuple(dict.fromkeys(notes)),
        metric=next(iter(by_metric)),
        title=f"{layout.title}, as in {layout.source}; {SPREAD.format(std)}.",
    )


def _members(runs: Sequence[Run], head: Head, usual: Mapping[str, str]) -> list[Run]:
    """Return the runs of a cell in the order of their seeds, those at the usual settings only where there are such."""
    members = [run for run in runs if head.holds(run)]
    for key, value in usual.items():
        members = [run for run in members if run.fits({key: value})] or members
    return sorted(members, key=lambda run: run.seed)


def _others(runs: Sequence[Run], layout: Layout) -> dict[str, Head]:
    """Return the federations of runs that would have a cell if the paper's table had those federations."""
    inner = [layout.where & row & column for row in layout.rows.values() for column in layout.columns.values()]
    known = _federations()
    others = {}
    for run in runs:
        where = {key: str(run.setting(key)) for key in ("dataset", "partition")}
        found = ((name, head) for name, head in known.items() if head.holds(run))
        name, head = next(found, (" ".join(where.values()), Head(where, unless=tuple(known.values()))))
        if head not in layout.federations.values() and any(each.holds(run) for each in inner):
            others[name] = head
    return dict(sorted(others.items()))


def _missing(places: Mapping[_Place, Head], members: Mapping[_Place, Sequence[Run]], seeds: int) -> list[str]:
    """Say how many runs the table lacks; rows or columns that show several metrics of the same runs count once."""
    numbers = {tuple(sorted(head.where.items())): sum(run.finished for run in members[place]) for place, head in places.items()}
    lacking = sum(max(0, seeds - number) for number in numbers.values())
    without = sum(number == 0 for number in numbers.values())
    fewer = sum(0 < number < seeds for number in numbers.values())
    wanted = f"Missing are {lacking} of {seeds * len(numbers)} runs"
    return [f"{wanted}: of {len(numbers)} cells {without} have none, {fewer} fewer than {seeds}."] if lacking else []


def _unlike(places: Mapping[_Place, Head], members: Mapping[_Place, Sequence[Run]]) -> list[str]:
    """Name the federations whose cells differ in more than the rows and columns say."""
    said = {key for head in places.values() for key in head.where}
    found: dict[str, list[Run]] = {place.federation: [] for place in places}
    for place, runs in members.items():
        found[place.federation] += [run for run in runs if run.finished]
    unsaid = {federation: _unsaid(runs, said) for federation, runs in found.items()}
    return [
        f"The runs of {federation} differ in {', '.join(f'`{key}`' for key in keys)}, which neither rows nor columns say."
        for federation, keys in unsaid.items()
        if keys
    ]


def _unsaid(runs: Sequence[Run], said: Collection[str]) -> list[str]:
    """Return the keys in which runs differ, without those that the table says and those that a said option brings along."""
    differing = {key for key in beside_the_seed(runs) if key.split(".")[0] not in said} if runs else set()
    for group in said:
        for option in {run.setting(group) for run in runs}:
            alike = beside_the_seed([run for run in runs if run.setting(group) == option])
            differing |= {key for key in alike if key.startswith(f"{group}.") and key not in said}
    return sorted(differing)


def _unusual(runs: Iterable[Run], usual: Mapping[str, str]) -> list[str]:
    """Name the settings of the paper that some of the counted runs do not have."""
    notes = []
    for key, value in usual.items():
        unlike = [run for run in runs if run.setting(key) is not None and not run.fits({key: value}) and run.finished]
        if unlike:
            values = ", ".join(sorted({str(run.setting(key)) for run in unlike}))
            notes.append(
                f"The paper's runs use `{key}={value}`; some of these runs use {values}, for example `{unlike[0].path}`."
            )
    return notes


def _load(name: str) -> dict[str, Any]:
    """Return what the files of a name hold, in the folders of all papers."""
    return OmegaConf.to_container(OmegaConf.merge(*map(OmegaConf.load, sorted(FOLDER.glob(f"*/{name}.yaml")))))  # type: ignore[return-value]


def _federations() -> dict[str, Head]:
    return {name: _head(where) for name, where in _load("federations").items()}


def _head(where: Mapping[str, Any]) -> Head:
    settings = {key: spelled(value) for key, value in where.items() if key not in ("metric", "lower_is_better")}
    return Head(settings, where.get("metric"), where.get("lower_is_better", False))


def _number(printed: Any) -> Cell:
    """Return a number as the paper prints it, with or without its deviation; ``None`` is no number."""
    if printed is None:
        return _NOTHING
    if found := _NUMBER.fullmatch(str(printed)):
        return Cell(float(found[1]), float(found[2] or "nan"), ())
    raise ValueError(f"Expected a number such as 88.01 ± 0.96, but got {printed!r}: fix the layout.")
