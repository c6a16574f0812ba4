"""Runs -> one page that a browser opens, without a network and without scripts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedfacet.analysis.comparison import compare_with, usual_baseline
from fedfacet.analysis.curves import AGAINST, Curves, bands_of, curves_of
from fedfacet.analysis.groups import named
from fedfacet.analysis.notes import notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.selection import selection_of
from fedfacet.analysis.tables import (
    MOMENTS,
    commits_of,
    finished_of,
    group_runs,
    hardware_of,
    keys_of,
    make_table,
    ordered,
    origin_of,
    smaller_is_better,
)
from fedfacet.errors import FedFacetError
from fedfacet.pages.grids import (
    Grid,
    accuracies_grid,
    clients_grids,
    compared_grid,
    curved_grid,
    differences_grid,
    groups_grid,
    participation_grid,
    runs_grid,
    selection_grids,
    versions_of,
)
from fedfacet.pages.pictures import curves_svg, looks_of, selection_svg, swatches_of
from fedfacet.storage.atomic_write import atomic_write

_OPTION = re.compile(r"(?<!\S)--[\w-]+")

METRICS = ("test/acc", "test/acc_worst_group")
"""What a page shows, beside a metric that is asked for."""

_MOST_MAPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be shown of the runs; each as in ``make_table`` and ``compare_with``.

    ``rows`` and ``columns`` are empty where they are to be found from what the runs differ in, ``baseline`` is ``None`` where
    it is to be the usual one, if there are enough seeds for any.
    """

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    metric: str | None = None
    at: str | None = None
    std: str = "population"
    lower_is_better: bool = False
    baseline: str | None = None
    test: str = "permutation"
    command: str


class Picture(NamedTuple):
    """An SVG and what stands below it."""

    svg: Markup
    caption: str


@dataclass(slots=True)
class Part:
    """Something of a section under a heading of its own, if it has one: tables, pictures, their legend, sentences."""

    heading: str = ""
    grids: list[Grid] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folded: list[tuple[str, Grid]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a name that it is found by."""

    name: str
    heading: str
    parts: Sequence[Part]


def write_page(runs: Sequence[Run], asked: Asked, path: Path) -> None:
    """Write the page; its folder is made if need be.

    Raises:
        ConfigError: as ``make_table``, and ``compare_with`` if there is a baseline.
        FedFacetError: if ``metrics.csv`` of a run cannot be read where the table needs it.
    """
    text = page_of(runs, asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(text.encode(errors="replace"))  # a folder's JSON may hold what no UTF-8 can


def page_of(runs: Sequence[Run], asked: Asked) -> str:
    """Return the page as HTML; arguments and errors as for ``write_page``."""
    finished = finished_of(runs)
    rows, columns = keys_of(runs, asked.rows, asked.columns)
    groups = group_runs(finished, rows, columns)
    metrics = _metrics(finished, asked.metric)
    baseline = usual_baseline(finished, rows, columns) if asked.baseline is None else asked.baseline
    sections = [
        Section("accuracies", "Accuracies", list(_accuracies(runs, finished, rows, columns, metrics, asked))),
        Section("comparison", f"Compared with {baseline}", list(_comparison(runs, rows, columns, metrics, baseline, asked))),
        Section("curves", "Curves", list(_curves(runs, rows, columns, metrics, asked))),
        Section("groups", "Accuracy per group", list(_groups(groups, columns, asked))),
        Section("clients", "Accuracy per client", list(_clients(groups, rows, columns, asked))),
        Section("selection", "Who was selected", list(_selection(runs, groups, rows, columns))),
        Section("runs", "The runs", list(_runs(runs, [*rows, *columns]))),
    ]
    origin = origin_of(finished, None)  # is told at the head of the page
    for section in sections:
        for part in section.parts:
            part.grids = [replace(grid, caption=grid.caption.removesuffix(origin).rstrip()) for grid in part.grids]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # whatever comes from files is text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    said = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    return environment.get_template("page.html.jinja").render(
        title=f"Report on {said}", provenance=_provenance(runs, asked), sections=[one for one in sections if one.parts]
    )


def coded(text: str) -> Markup:
    """Return a sentence as HTML, what stands in backticks as code; a line does not break between the hyphens of an option.

    Example:
        >>> print(coded("`a` < --b"))
        <code>a</code> &lt; <span class="option">--b</span>
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick too many is a backtick
        return escape(text)
    whole = [_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(part))) for part in parts]
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(whole)))


def _metrics(runs: Sequence[Run], asked: str | None) -> list[str]:
    measured = {name for run in runs for name in run.at("last")}
    usual = [metric for metric in METRICS if metric in measured]
    return list(dict.fromkeys([*([asked] if asked else []), *usual])) or [METRICS[-1]]


def _lower(metric: str, asked: Asked) -> bool:
    return smaller_is_better(metric) or (asked.lower_is_better and metric == asked.metric)


def _provenance(runs: Sequence[Run], asked: Asked) -> dict[str, list[str]]:
    """Return what a reader must know of where the numbers come from."""
    finished = [run for run in runs if run.finished]
    versions: dict[str, set[str]] = {}
    for run in finished:
        for name, version in versions_of(run).items():
            versions.setdefault(name, set()).add(version)
    seeds = sorted({run.seed for run in finished})
    told = {
        "Runs": [f"{len(runs):,}, of which {len(finished):,} finished", *notes_on_unfinished(runs)],
        "Seeds": [", ".join(map(str, seeds))],
        "Made with": [f"`{asked.command}`"],
        "Commit": commits_of(finished),
        "Environment": ["; ".join(f"{name} {', '.join(sorted(found))}" for name, found in versions.items())]
        if versions
        else [],
        "Hardware": hardware_of(finished),
    }
    return {name: values for name, values in told.items() if values}


def _accuracies(
    runs: Sequence[Run],
    finished: Sequence[Run],
    rows: Sequence[str],
    columns: Sequence[str],
    metrics: Sequence[str],
    asked: Asked,
) -> Iterator[Part]:
    at = asked.at or "all"
    tables = {
        metric: make_table(
            runs, rows=rows, columns=columns, metric=metric, at=at, std=asked.std, lower_is_better=_lower(metric, asked)
        )
        for metric in metrics
    }
    names = dict.fromkeys(column.name for column in tables[metrics[0]].columns)
    for name in names:
        yield Part(_heading(columns, name, names), [accuracies_grid(tables, name, finished, at, asked.std)])


def _comparison(
    runs: Sequence[Run],
    rows: Sequence[str],
    columns: Sequence[str],
    metrics: Sequence[str],
    baseline: str | None,
    asked: Asked,
) -> Iterator[Part]:
    for metric in metrics if baseline is not None else ():
        found = compare_with(
            runs,
            str(baseline),
            rows=rows,
            columns=columns,
            metric=metric,
            at=asked.at or "last",
            test=asked.test,
            lower_is_better=_lower(metric, asked),
        )
        part = Part(named(runs, metric), [compared_grid(found)])
        if asked.baseline is None and metric == metrics[0]:
            part.notes.append("Nobody has named a row to compare with: `--compare ROW` names another one.")
        yield part


def _curves(
    runs: Sequence[Run], rows: Sequence[str], columns: Sequence[str], metrics: Sequence[str], asked: Asked
) -> Iterator[Part]:
    for metric in metrics:
        part, drawn = Part(named(runs, metric)), {}
        for against in AGAINST:
            if against == "sim/clock" and not any("sim/clock" in run.at("last") for run in runs):
                continue
            try:
                drawn[against] = curves_of(
                    runs,
                    rows=rows,
                    columns=columns,
                    metric=metric,
                    against=against,
                    std=asked.std,
                    lower_is_better=_lower(metric, asked),
                )
            except FedFacetError as error:
                part.notes.append(f"Not drawn against {AGAINST[against]}: {error}")
        if drawn:
            looks = looks_of(ordered({curve.row for curves in drawn.values() for curve in curves.curves}))
            part.legend = swatches_of(looks)
            for curves in drawn.values():
                part.pictures += _pictures(curves, looks)
            part.grids.append(curved_grid(next(iter(drawn.values()))))
        yield part


def _pictures(curves: Curves, looks: Mapping[str, Mapping[str, str]]) -> Iterator[Picture]:
    unit, across = " (%)" if curves.percent else "", AGAINST[curves.against]
    panels = bands_of(curves)
    for name, bands in panels.items():
        where = f", {name}" if len(panels) > 1 else ""
        ends = "; ".join(f"{band.name} ends at {band.mean_R[-1]:.4g}" for band in bands)
        title = f"{curves.named}{unit} over {across}{where}: {ends}."
        svg = curves_svg(bands, looks, up=f"{curves.named}{unit}", across=across, title=title)
        yield Picture(svg, f"`{curves.named}`{unit} over {across}{where}")


def _groups(groups: Mapping[tuple[str, str], Sequence[Run]], columns: Sequence[str], asked: Asked) -> Iterator[Part]:
    moment = asked.at if asked.at in MOMENTS else "last"
    names = ordered({column for _, column in groups})
    for name in names:
        if grid := groups_grid(groups, name, str(moment), asked.std):
            yield Part(_heading(columns, name, names), [grid])


def _clients(
    groups: Mapping[tuple[str, str], Sequence[Run]], rows: Sequence[str], columns: Sequence[str], asked: Asked
) -> Iterator[Part]:
    moment = asked.at if asked.at in MOMENTS else "last"
    names = ordered({column for _, column in groups})
    for name in names:
        if grids := list(clients_grids(groups, name, " / ".join(rows), str(moment), asked.std)):
            yield Part(_heading(columns, name, names), grids)


def _selection(
    runs: Sequence[Run], groups: Mapping[tuple[str, str], Sequence[Run]], rows: Sequence[str], columns: Sequence[str]
) -> Iterator[Part]:
    part = Part()
    names, types = ordered({column for _, column in groups}), {}
    try:
        found = selection_of(runs, rows=rows, columns=columns)
        types = dict(found.types)
        part.grids += selection_grids(found)
        places = [(row, column) for column in names for row in ordered({row for row, head in found.chosen if head == column})]
        for row, column in places[:_MOST_MAPS]:
            chosen_RK = found.chosen[row, column]
            name = f"{row}, {column}" if len(names) > 1 else row
            rounds, number = chosen_RK.shape
            title = (
                f"Who was selected by {name}, seed {found.evenness[row, column][0].seed}: {rounds} rounds, {number} clients."
            )
            part.pictures.append(Picture(selection_svg(chosen_RK, types[row, column], title), f"`{name}`"))
        if part.pictures:
            part.notes.append(
                "In the pictures a line is a client, sorted by type, and a column a round; filled is selected. They show the "
                "run of each setting's lowest seed."
            )
        if len(found.chosen) > _MOST_MAPS:
            part.notes.append(f"Only the first {_MOST_MAPS} of {len(found.chosen)} settings are drawn.")
    except FedFacetError as error:
        part.notes.append(f"Not shown: {error}")
    for name in names:
        if grid := participation_grid(groups, name, types):
            said = f" ({_heading(columns, name, names)})" if len(names) > 1 else ""
            part.folded.append((f"How often each client took part{said}", grid))
    yield part


def _runs(runs: Sequence[Run], keys: Sequence[str]) -> Iterator[Part]:
    differences = differences_grid(runs)
    part = Part(grids=[differences] if differences else [])
    if not differences:
        part.notes.append("The configurations differ in nothing but the seed.")
    part.folded.append(("Every run: seed, status and digests", runs_grid(runs, keys)))
    yield part


def _heading(keys: Sequence[str], name: str, names: object) -> str:
    """Return a heading for one of several columns."""
    return f"{' / '.join(keys)}: {name}" if len(list(names)) > 1 else ""  # type: ignore[call-overload]
