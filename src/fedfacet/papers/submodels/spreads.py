"""The thesis' table 9: how far apart methods lie where 2, 5 and 8 of ten clients hold the whole model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import finished_of
from fedfacet.analysis.tables import PAPER
from fedfacet.analysis.writers import Table
from fedfacet.errors import ConfigError
from fedfacet.papers.layouts import Layout, load_layout, make_layout_table

PRINTED: Any = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Table 9 as the thesis prints it."""

_LARGE = " large, "


@dataclass(frozen=True, slots=True)
class Spread:
    """The least and the largest mean over seeds among methods, in percent.

    ``printed`` is the thesis' difference, least and largest mean; ``None`` where it has none.
    """

    federation: str
    measure: str
    large: int
    lowest: float
    low_method: str
    highest: float
    high_method: str
    num_methods: int
    fewest_seeds: int
    printed: Sequence[float] | None


def spreads(runs: Sequence[Run]) -> list[Spread]:
    """Return what finished runs have for table 9: over the rows of tables 24 to 26 with as many whole clients.

    Source: the thesis, section 4.8.3, table 9. It is the difference of means, each over seeds. The more methods and the fewer
    seeds, the larger chance makes it.

    Raises:
        ConfigError: if no two methods with as many whole clients have finished runs, or a method has a seed twice.
    """
    finished, found = finished_of(runs), list[Spread]()
    for dataset, table in PRINTED.items():
        if dataset in {run.setting("dataset") for run in finished}:
            found += _of_federation(finished, load_layout(table["layout"]), table["measures"])
    if not found:
        raise ConfigError(
            f"None of {len(runs)} runs has a second method beside it with as many whole clients: run sweep=model_integration."
        )
    return found


def _of_federation(runs: Sequence[Run], layout: Layout, measures: Mapping[str, Any]) -> Iterator[Spread]:
    """Yield the spreads of one table's methods."""
    ((federation, head),) = layout.federations.items()
    here = [run for run in runs if any((layout.where & head & row).holds(run) for row in layout.rows.values())]
    if not here:
        return
    means = make_layout_table(here, layout)
    for measure, printed in measures.items():
        cells = {
            row: cell
            for (row, column), cell in means.cells.items()
            if column.name == measure and column.at != PAPER and math.isfinite(cell.mean)
        }
        for large in (2, 5, 8):
            methods = {row.partition(_LARGE)[2]: cell for row, cell in cells.items() if row.startswith(f"{large}{_LARGE}")}
            if len(methods) > 1:
                low, high = (choose(methods, key=lambda one: methods[one].mean) for choose in (min, max))
                fewest = min(len(cell.seeds) for cell in methods.values())
                ends = methods[low].mean, low, methods[high].mean, high
                yield Spread(federation, measure, large, *ends, len(methods), fewest, printed.get(large))


def spreads_table(found: Sequence[Spread], command: str) -> Table:
    """Return a line per spread."""
    rows = []
    for one in found:
        ours = f"{one.highest - one.lowest:.2f} ({one.lowest:.2f}-{one.highest:.2f})"
        thesis = "-" if one.printed is None else "{:.2f} ({:.2f}-{:.2f})".format(*one.printed)
        methods = [one.low_method, one.high_method, str(one.num_methods), str(one.fewest_seeds)]
        rows.append([one.federation, one.measure, str(one.large), ours, *methods, thesis])
    caption = (
        "Largest less least mean over seeds among the methods, in percentage points, and both means, as in the thesis, table "
        f"9. Made with `{command}`."
    )
    notes = ["A spread grows with the number of methods and with noise: compare those of as many methods and seeds."]
    heads = ["data set", "measure", "whole clients", "spread", "least", "largest", "methods", "seeds of each", "thesis"]
    return Table(caption, heads, rows, names=2, notes=notes)
