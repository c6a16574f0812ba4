"""Runs -> one page that a browser opens, without a network and without scripts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedfacet.analysis import page_tables
from fedfacet.analysis.comparison import compare_with, usual_baseline
from fedfacet.analysis.curves import AGAINST, Curves, bands_of, curves_of
from fedfacet.analysis.groups import named
from fedfacet.analysis.notes import notes_on_unfinished
from fedfacet.analysis.page_pictures import curves_svg, selection_svg, swatches_of
from fedfacet.analysis.runs import Run
from fedfacet.analysis.selection import selection_of
from fedfacet.analysis.study import (
    MOMENTS,
    Study,
    commits_of,
    hardware_of,
    in_columns,
    keys_of,
    ordered,
    origin_of,
    smaller_is_better,
    usual_metric,
)
from fedfacet.analysis.tables import make_table
from fedfacet.analysis.writers import Marked, Table
from fedfacet.errors import FedFacetError
from fedfacet.plots.curves import looks_of
from fedfacet.storage.atomic_write import atomic_write

_OPTION = re.compile(r"(?<!\S)--[\w-]+")

METRICS = ("test/acc", "test/acc_worst_group")
"""What a page shows, beside a metric that is asked for."""

_MOST_MAPS = 60


@dataclass(slots=True)
class Part:
    """Something of a section, under a heading if it has one: tables, pictures above their captions, their legend, sentences."""

    heading: str = ""
    tables: list[Table] = field(default_factory=list)
    pictures: list[tuple[Markup, str]] = field(default_factory=list)
    legend: list[tuple[str, str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folded: list[tuple[str, Table]] = field(default_factory=list)


def write_page(runs: Sequence[Run], path: Path, **asked: Any) -> None:
    """Write the page; its folder is made if need be. Arguments and errors are those of ``page_of``."""
    text = page_of(runs, **asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(text.encode(errors="replace"))  # a folder's JSON may hold what no UTF-8 can


def page_of(runs: Sequence[Run], **asked: Any) -> str:
    """Return the page as HTML; ``asked`` is as for ``_Page``.

    Raises:
        ConfigError: as ``Study``, and ``compare_with`` if there is a baseline.
        FedFacetError: if ``metrics.csv`` of a run cannot be read where the table needs it.
    """
    page = _Page(runs, **asked)
    finished, baseline = page.study.finished, page.baseline
    if baseline is None:
        baseline = usual_baseline(finished, page.study.rows, page.study.columns)
    shown = baseline if baseline is None else page.study.row(baseline)
    sections = {
        "accuracies": ("Accuracies", list(page.accuracies())),
        "comparison": (f"Compared with {shown}", list(page.comparison(baseline))),
        "curves": ("Curves", list(page.curves())),
        "groups": ("Accuracy per group", list(page.groups())),
        "clients": ("Accuracy per client", list(page.clients())),
        "selection": ("Who was selected", [page.selection()]),
        "runs": ("The runs", [page.differences()]),
    }
    origin = origin_of(finished, None)  # is told at the head of the page
    for part in (part for _, parts in sections.values() for part in parts):
        part.tables = [replace(table, caption=table.caption.removesuffix(origin).rstrip()) for table in part.tables]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # whatever comes from files is text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"coded": coded, "marked": _marked}
    said = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    filled = {name: section for name, section in sections.items() if section[1]}
    template = environment.get_template("page.html.jinja")
    return template.render(title=f"Report on {said}", provenance=page.provenance(), sections=filled)


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


def _marked(cell: str | Marked) -> Markup:
    if isinstance(cell, str):
        return escape(cell)
    tag = {"bold": "strong", "underlined": "u"}[cell.mark]
    return Markup("<{0}>{1}</{0}>{2}").format(tag, cell.text, cell.rest)


@dataclass(kw_only=True)
class _Page:
    """What is to be shown of runs; each argument as for ``Study`` and ``compare_with``.

    ``rows`` and ``columns`` are empty where they are to be found from what the runs differ in, ``baseline`` is ``None`` where
    it is to be the usual one, if there are enough seeds for any.
    """

    runs: Sequence[Run] = field(kw_only=False)
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    metric: str | None = None
    at: str | None = None
    std: str = "population"
    lower_is_better: bool = False
    baseline: str | None = None
    test: str = "permutation"
    command: str
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.study = Study(self.runs, *keys_of(self.runs, self.rows, self.columns), metric="", std=self.std, names=self.names)
        measured = {name for run in self.study.finished for name in run.at("last")}
        usual = [metric for metric in METRICS if metric in measured]
        wanted = [self.metric] if self.metric else []
        self.metrics = list(dict.fromkeys([*wanted, *usual])) or [usual_metric(self.study.finished) or METRICS[-1]]
        self.moment = self.at if self.at in MOMENTS else "last"
        self.by_column: dict[str, dict[str, Sequence[Run]]] = {}
        for row, column in in_columns(self.study.groups):
            of_column = self.by_column.setdefault(self.study.column(column), {})
            of_column[self.study.row(row)] = self.study.groups[row, column]

    def provenance(self) -> dict[str, list[str]]:
        """Return what a reader must know of where the numbers come from."""
        finished = self.study.finished
        versions: dict[str, set[str]] = {}
        for run in finished:
            for name, version in page_tables.versions_of(run).items():
                versions.setdefault(name, set()).add(version)
        seeds = sorted({run.seed for run in finished})
        facts = {
            "Runs": [f"{len(self.runs):,}, of which {len(finished):,} finished", *notes_on_unfinished(self.runs)],
            "Seeds": [", ".join(map(str, seeds))],
            "Made with": [f"`{self.command}`"],
            "Commit": commits_of(finished),
            "Environment": ["; ".join(f"{name} {', '.join(sorted(found))}" for name, found in versions.items())]
            * bool(versions),
            "Hardware": hardware_of(finished),
        }
        return {name: values for name, values in facts.items() if values}

    def of(self, metric: str) -> dict[str, Any]:
        """Return what is asked of one metric, as for ``Study``."""
        lower = smaller_is_better(metric) or (self.lower_is_better and metric == self.metric)
        study = self.study
        shared = {"rows": study.rows, "columns": study.columns, "std": study.std, "names": self.names}
        return {**shared, "metric": metric, "lower_is_better": lower}

    def heading(self, column: str, names: Sequence[str]) -> str:
        """Return a heading for one of several columns."""
        return f"{self.study.heads}: {column}" if len(names) > 1 else ""

    def accuracies(self) -> Iterator[Part]:
        at = self.at or "all"
        means = {metric: make_table(self.runs, **self.of(metric), at=at) for metric in self.metrics}
        names = list(dict.fromkeys(column.name for column in means[self.metrics[0]].columns))
        for name in names:
            table = page_tables.accuracies_table(means, name, self.study.finished, at, self.study.std)
            yield Part(self.heading(self.study.column(name), [*map(self.study.column, names)]), [table])

    def comparison(self, baseline: str | None) -> Iterator[Part]:
        for metric in self.metrics if baseline is not None else ():
            asked = {**self.of(metric), "at": self.at or "last", "test": self.test}
            part = Part(named(self.runs, metric), [compare_with(self.runs, str(baseline), **asked).table()])
            if self.baseline is None and metric == self.metrics[0]:
                part.notes.append("Nobody has named a row to compare with: `--compare ROW` names another one.")
            yield part

    def curves(self) -> Iterator[Part]:
        runs = self.runs
        for metric in self.metrics:
            part, drawn = Part(named(runs, metric)), {}
            for against in AGAINST:
                if against == "sim/clock" and not any("sim/clock" in run.at("last") for run in runs):
                    continue
                try:
                    drawn[against] = curves_of(runs, against=against, **self.of(metric))
                except FedFacetError as error:
                    part.notes.append(f"Not drawn against {AGAINST[against]}: {error}")
            if drawn:
                heads = ordered({curve.row for curves in drawn.values() for curve in curves.curves})
                looks = looks_of([self.study.row(head) for head in heads])
                part.legend = swatches_of(looks)
                part.pictures = [picture for curves in drawn.values() for picture in _pictures(curves, looks)]
                part.tables.append(next(iter(drawn.values())).table())
            yield part

    def groups(self) -> Iterator[Part]:
        for name, rows in self.by_column.items():
            if table := page_tables.groups_table(rows, self.moment, self.study.std):
                yield Part(self.heading(name, [*self.by_column]), [table])

    def clients(self) -> Iterator[Part]:
        for name, rows in self.by_column.items():
            if tables := list(page_tables.clients_tables(rows, self.study.corner, self.moment, self.study.std)):
                yield Part(self.heading(name, [*self.by_column]), tables)

    def selection(self) -> Part:
        part, study = Part(), self.study
        types: Mapping[tuple[str, str], Sequence[str]] = {}
        try:
            found = selection_of(self.runs, rows=study.rows, columns=study.columns, names=self.names)
            types = {(study.row(row), study.column(column)): kinds for (row, column), kinds in found.types.items()}
            table = found.table()
            part.tables += [table, *table.more]
            for row, column in in_columns(found.chosen)[:_MOST_MAPS]:
                chosen_RK = found.chosen[row, column]
                name = f"{study.row(row)}, {study.column(column)}" if len(self.by_column) > 1 else study.row(row)
                (rounds, number), seed = chosen_RK.shape, found.evenness[row, column][0].seed
                title = f"Who was selected by {name}, seed {seed}: {rounds} rounds, {number} clients."
                part.pictures.append((selection_svg(chosen_RK, found.types[row, column], title), f"`{name}`"))
            if part.pictures:
                part.notes.append(
                    "In the pictures a line is a client, sorted by type, and a column a round; filled is selected. They show "
                    "the run of each setting's lowest seed."
                )
            if len(found.chosen) > _MOST_MAPS:
                part.notes.append(f"Only the first {_MOST_MAPS} of {len(found.chosen)} settings are drawn.")
        except FedFacetError as error:
            part.notes.append(f"Not shown: {error}")
        for name, rows in self.by_column.items():
            of_column = {row: kinds for (row, column), kinds in types.items() if column == name}
            if counted := page_tables.participation_table(rows, of_column):
                heading = self.heading(name, [*self.by_column])
                part.folded.append((f"How often each client took part{heading and f' ({heading})'}", counted))
        return part

    def differences(self) -> Part:
        runs = self.runs
        differences = page_tables.differences_table(runs)
        part = Part(tables=[differences] if differences else [])
        if not differences:
            part.notes.append("The configurations differ in nothing but the seed.")
        part.folded.append(("Every run: seed, status and digests", page_tables.runs_table(runs, self.study.keys)))
        return part


def _pictures(curves: Curves, looks: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[Markup, str]]:
    unit, across = " (%)" if curves.study.percent else "", AGAINST[curves.against]
    panels = bands_of(curves)
    for name, bands in panels.items():
        where = f", {name}" if len(panels) > 1 else ""
        ends = "; ".join(f"{band.name} ends at {band.mean_R[-1]:.4g}" for band in bands)
        title = f"{curves.named}{unit} over {across}{where}: {ends}."
        svg = curves_svg(bands, looks, up=curves.study.axis, across=across, title=title)
        yield svg, f"`{curves.named}`{unit} over {across}{where}"
