"""Run folders -> a table, a picture or a page."""

import argparse
import contextlib
import csv
import io
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet.commands import called
from fedfacet.commands.report_options import PICTURES, parse
from fedfacet.entry import print_error, sentence_of
from fedfacet.errors import ConfigError, FedFacetError, first_line
from fedfacet.shell_words import typed
from fedfacet.waiting import waiting

if TYPE_CHECKING:
    from fedfacet.analysis.runs import Run
    from fedfacet.analysis.writers import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write what the options ask for; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    # Late, so that --help and misspelt options answer at once.
    with waiting("reads the runs"):
        from fedfacet.analysis.study import SeedTwiceError
    try:
        text, table = made(options, argv)
        if table is None:
            print(text)
            return 0
    except (FedFacetError, OSError) as error:
        rows = error.rows if isinstance(error, SeedTwiceError) else ()
        ready = f" Ready to run: {typed(with_rows(argv, rows))}" if rows else ""
        print_error(sentence_of(error) + ready)
        return 2
    if sys.stdout.isatty() and options.format in (None, "markdown"):
        from fedfacet.commands.output import folded

        text = folded(text, shutil.get_terminal_size().columns)
    print(f"wrote {options.output}\n" if options.output else text, end="")
    if picture := options.forest or options.picture:
        print(f"wrote {picture}", file=sys.stderr)
    if options.format == "csv" and not options.overhead:
        # CSV has no place for the caption and the notes.
        for sentence in (table.caption, *(f"Note: {note}" for note in table.notes)):
            print(sentence, file=sys.stderr)
    return 0


def made(options: argparse.Namespace, argv: Sequence[str]) -> "tuple[str, Table | None]":
    """Make what the options ask for, and write it where they say so; return the text, and the table unless it is none.

    Raises:
        FedFacetError: if runs cannot be read, or have not what is asked for.
        OSError: if a file cannot be written.
    """
    with waiting("reads the runs"):
        from fedfacet.analysis.names import names_for
        from fedfacet.analysis.runs import find_runs
        from fedfacet.analysis.writers import WRITERS

    command = typed([*called("report").split(), *argv])
    try:
        with waiting("reads the runs"):
            runs = attacked(options, find_runs(options.runs))
            options.names = names_for(runs, options.names)
        if wrote := drawn(options, runs, command):
            return wrote, None
        table = asked_for(options, runs, command)
        text = WRITERS[options.format or "markdown"](table)
    except (FedFacetError, OSError):
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, csv.Error) as error:
        raise FedFacetError(
            f"Expected run folders as runs write them, but reading them ended in {type(error).__name__} ({first_line(error)}): "
            "leave out what is damaged."
        ) from error
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return text, table


class Text(str):
    """A text that a shell and a notebook show as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return itself."""
        return str(self)


def report(runs: Any, **options: Any) -> Text:
    """Return the table that ``python src/report.py RUNS... --OPTION VALUE`` prints, or write the page or picture that it does.

    Args:
        runs: run folders, folders of them, or what ``fit`` and ``train`` returned; one or a list.
        options: those of the command, with underscores: ``html="page.html"``, ``compare="uniform"``, ``rows="selector"``,
            ``where={"aggregator.momentum": 0.9}``, ``lower_is_better=True``.

    Raises:
        FedFacetError: in one sentence, if there is no such option, or as the command says.
    """
    from fedfacet.analysis.pairs import folders_of

    argv = [str(folder) for folder in folders_of(runs)]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        values = [f"{key}={one}" for key, one in value.items()] if isinstance(value, Mapping) else [value]
        argv += [option] if value is True else [w for one in values if one not in (None, False) for w in (option, str(one))]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = parse(argv)
    except SystemExit:
        fault = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(
            f"Expected options of `report`, but {first_line(ValueError(fault))}: see `fedfacet report --help`."
        ) from None
    return Text(made(parsed, argv)[0])


def with_rows(argv: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return the command with other rows."""
    at = argv.index("--rows") if "--rows" in argv else len(argv)
    kept = [word for word in (*argv[:at], *argv[at + 2 :]) if not word.startswith("--rows=")]
    return [*called("report").split(), *kept, "--rows", ",".join(rows)]


def attacked(options: argparse.Namespace, runs: "list[Run]") -> "list[Run]":
    """Return the runs with the audits alone that fit ``--audit``."""
    if not options.audit:
        return runs
    found = [run.attacked_as(options.audit) for run in runs]
    if any(run.audits for run in found):
        return found
    values = {key: {str(audit.threat_model.get(key)) for run in runs for audit in run.audits} for key in options.audit}
    have = "; ".join(f"{key} is {' or '.join(sorted(texts))}" for key, texts in values.items() if texts) or "there is none"
    raise ConfigError(f"Expected an audit that fits --audit, but none of {len(runs)} runs has one: {have}.")


def fitting(options: argparse.Namespace, runs: "Sequence[Run]") -> "list[Run]":
    """Return the runs that fit ``--where``."""
    found = [run for run in runs if run.fits(options.where)]
    if not found:
        values = {key: sorted({str(run.setting(key)) for run in runs}) for key in options.where}
        have = "; ".join(f"{key} is {' or '.join(texts)}" for key, texts in values.items())
        raise ConfigError(f"Expected runs that fit --where, but none of {len(runs)} does: {have}.")
    return found


def words(keys: str | None) -> list[str]:
    """Return the keys of rows or columns that the user names."""
    return [key.strip() for key in keys.split(",")] if keys else []


def of_study(options: argparse.Namespace, runs: "Sequence[Run]", command: str, **more: Any) -> dict[str, Any]:
    """Return what the user asks of the runs, as for ``Study``; ``more`` stands where the user says nothing."""
    from fedfacet.analysis.study import smaller_is_better, usual_column, usual_metric

    settings = {run.setting("setting") or "federated" for run in runs}
    metric = options.metric or (None if options.layout else usual_metric(runs))
    asked = {"metric": metric, "at": options.at} | {key: value for key, value in more.items() if value is not None}
    lower_is_better = options.lower_is_better or smaller_is_better(asked["metric"] or "")
    return {
        "rows": words(options.rows or ("selector" if len(settings) == 1 else "setting,selector")),
        "columns": words(options.columns or usual_column(runs)),
        **{key: value for key, value in asked.items() if value is not None},
        **{"std": options.std, "lower_is_better": bool(lower_is_better), "command": command, "names": options.names},
    }


def asked_for(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "Table":
    """Return the table that the options ask for, and draw what belongs to it."""
    if options.layout and options.layout not in ("submodels_correlations", "submodels_spreads"):
        from fedfacet.papers.layouts import load_layout, make_layout_table

        asked = {
            name: value for name, value in of_study(options, runs, command).items() if name not in ("rows", "columns", "names")
        }
        return make_layout_table(runs, load_layout(options.layout), where=options.where, **asked).table()
    runs = fitting(options, runs)
    if options.layout == "submodels_spreads":
        from fedfacet.papers.submodels.spreads import spreads, spreads_table

        return spreads_table(spreads(runs), command)
    if options.layout:
        return correlations_of(options, runs, command)
    if options.tradeoff:
        from fedfacet.analysis.tradeoff import METRIC, draw_tradeoff, tradeoff_of

        keys = {key: words(text) for key in ("rows", "columns") if (text := getattr(options, key))}
        traded = tradeoff_of(runs, metric=options.metric or METRIC, command=command, names=options.names, **keys)
        return pictured(traded, draw_tradeoff, options, "tradeoff.png")
    if options.overhead:
        from fedfacet.papers.feddiverse.overhead import measure_overheads, overhead_table

        measured, unread = measure_overheads(runs)
        if not measured:
            raise ConfigError(
                "Expected runs with metrics.csv and summary.json, but got none: name finished ones that fit --where."
            )
        return overhead_table(measured, unread, command)
    if options.time_to:
        from fedfacet.analysis.time_to import draw_times, time_to

        metric, targets = options.time_to
        times = time_to(runs, targets=targets, **of_study(options, runs, command, metric=metric))
        return pictured(times, draw_times, options)
    asked = of_study(options, runs, command)
    if options.compare and not options.selection:
        from fedfacet.analysis.comparison import compare_with, draw_comparison

        comparison = compare_with(runs, options.compare, test=options.test or "permutation", **asked)
        if options.forest:
            draw_comparison(comparison, options.forest, options.width)
        return comparison.table()
    if options.curves:
        from fedfacet.analysis.curves import curves_of, draw_curves

        curves = curves_of(runs, threshold=options.threshold, against=options.against or "round", **asked)
        return pictured(curves, draw_curves, options, "curves.png")
    if options.selection:
        from fedfacet.analysis.selection import draw_selection, selection_of
        from fedfacet.analysis.writers import to_csv

        table = pictured(selection_of(runs, options.compare, **asked), draw_selection, options, "selection.png")
        options.picture.with_suffix(".csv").write_text(to_csv(table), encoding="utf-8")
        return table
    from fedfacet.analysis.tables import make_table

    return make_table(runs, **asked).table()


def correlations_of(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "Table":
    """Return the thesis' tables 7 and 8, and draw figure 7a where runs have points for it."""
    from fedfacet.papers.submodels.correlations import correlations, correlations_table, points_of_sizes
    from fedfacet.papers.submodels.sizes import plot_sizes

    table = correlations_table(correlations(runs), command)
    if points := points_of_sizes(runs):
        options.picture = options.picture or PICTURES / "sizes.png"
        plot_sizes(points, options.picture, options.width)
    elif options.picture:
        raise ConfigError("Expected clients to draw for --picture, but no run has points of table 8: leave it out.")
    return table


def pictured(
    found: Any, draw: Callable[[Any, Path, float | None], None], options: argparse.Namespace, usual: str | None = None
) -> "Table":
    """Draw what was found, where the user says or under its ``usual`` name; return its table."""
    options.picture = options.picture or (PICTURES / usual if usual else None)
    if options.picture:
        draw(found, options.picture, options.width)
    table: Table = found.table()
    return table


def drawn(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> str | None:
    """Draw or write what is no table, if the options ask for that; return what to print of it."""
    if options.layout == "sensitivity":
        from fedfacet.papers.feddiverse.sensitivity import METRIC, measure_sensitivity, plot_sensitivity

        sensitivity = measure_sensitivity(runs, metric=options.metric or METRIC, where=options.where)
        output = options.output or PICTURES / "sensitivity.png"
        plot_sensitivity(sensitivity, output)
        return f"wrote {output}: {sensitivity}."
    if options.clients:
        from fedfacet.analysis.writers import to_csv, to_markdown
        from fedfacet.papers.participation import client_histograms as histograms

        runs = fitting(options, runs)
        asked = of_study(options, runs, command)
        clients = histograms.measure_clients(runs, rows=asked["rows"], columns=asked["columns"], trust=options.trust)
        picture = options.output or PICTURES / "clients.png"
        histograms.plot_clients(clients, picture)
        table, lines = histograms.clients_table(clients, runs, command), picture.with_suffix(".csv")
        lines.write_text(to_csv(table), encoding="utf-8")
        return f"{to_markdown(table)}\nwrote {picture} and {lines}"
    if options.html:
        from fedfacet.analysis.page import write_page

        asked = {name: getattr(options, name) for name in ("metric", "at", "std", "lower_is_better")}
        asked |= {"rows": words(options.rows), "columns": words(options.columns), "baseline": options.compare}
        asked |= {"test": options.test or "permutation", "command": command, "names": options.names}
        write_page(fitting(options, runs), options.html, **asked)
        return f"wrote {options.html}"
    return None
