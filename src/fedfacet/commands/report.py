"""Run folders -> a table, a picture or a page."""

import argparse
import csv
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedfacet.commands import called
from fedfacet.commands.report_options import PICTURES, parse
from fedfacet.entry import sentence_of, shown
from fedfacet.errors import ConfigError, FedFacetError, first_line
from fedfacet.shell_words import typed
from fedfacet.waiting import waiting

if TYPE_CHECKING:
    from fedfacet.analysis.comparison import Comparison
    from fedfacet.analysis.curves import Curves
    from fedfacet.analysis.runs import Run
    from fedfacet.analysis.selection import Selection
    from fedfacet.analysis.tables import Table
    from fedfacet.analysis.time_to import TimeTo
    from fedfacet.analysis.tradeoff import Tradeoff


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write what the options ask for; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    # Late, so that --help and misspelt options answer at once.
    with waiting("reads the runs"):
        from fedfacet.analysis.runs import find_runs
        from fedfacet.analysis.tables import SeedTwiceError

    command = typed([*called("report").split(), *argv])
    said: Table | Comparison | Curves | Tradeoff | TimeTo | Selection | None = None
    try:
        with waiting("reads the runs"):
            runs = attacked(options, find_runs(options.runs))
        if options.layout == "sensitivity":
            print(drawn(options, runs))
            return 0
        if options.clients:
            print(client_histograms(options, runs, command), end="")
            return 0
        if options.html:
            page(options, runs, command)
            print(f"wrote {options.html}")
            return 0
        if options.compare:
            said, text = compared(options, runs, command)
        elif options.curves:
            said, text = curves(options, runs, command)
        elif options.layout == "submodels_correlations":
            from fedfacet.papers.submodels.correlations import correlations, correlations_markdown

            text = correlations_markdown(correlations(fitting(options, runs)), command)
        elif options.tradeoff:
            said, text = tradeoff(options, runs, command)
        elif options.time_to:
            said, text = times(options, runs, command)
        elif options.selection:
            said, text = selections(options, runs, command)
        elif options.overhead:
            text = overheads(options, runs, command)
        else:
            said, text = tabled(options, runs, command)
        if options.output:
            options.output.write_text(text, encoding="utf-8")
    except (FedFacetError, OSError) as error:
        rows = error.rows if isinstance(error, SeedTwiceError) else ()
        ready = f" Ready to run: {typed(with_rows(argv, rows))}" if rows else ""
        print(f"{shown(sentence_of(error))}{ready}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, csv.Error) as error:
        print(
            f"Expected run folders as runs write them, but reading them ended in {type(error).__name__} ({first_line(error)}): "
            "leave out what is damaged.",
            file=sys.stderr,
        )
        return 2
    if sys.stdout.isatty() and options.format in (None, "markdown"):
        from fedfacet.analysis.terminal import folded

        text = folded(text, shutil.get_terminal_size().columns)
    print(f"wrote {options.output}\n" if options.output else text, end="")
    if picture := options.forest or options.picture:
        print(f"wrote {picture}", file=sys.stderr)
    if options.format == "csv" and said:
        # CSV has no place for the caption and the notes.
        for sentence in (said.caption, *(f"Note: {note}" for note in said.notes)):
            print(sentence, file=sys.stderr)
    return 0


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


def heads(options: argparse.Namespace, runs: "Sequence[Run]") -> tuple[list[str], list[str]]:
    """Return the keys of rows and columns."""
    from fedfacet.analysis.tables import usual_column

    settings = {run.setting("setting") or "federated" for run in runs}
    rows = options.rows or ("selector" if len(settings) == 1 else "setting,selector")
    columns = options.columns or usual_column(runs)
    return [key.strip() for key in rows.split(",")], [key.strip() for key in columns.split(",")]


def lower_is_better(options: argparse.Namespace) -> bool:
    """Tell whether small values of the metric are good: because the user says so, or because of what it is."""
    from fedfacet.analysis.tables import smaller_is_better

    return bool(options.lower_is_better or smaller_is_better(options.metric or ""))


def table_of(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "Table":
    """Return the table whose rows and columns the user names, or a paper's as it is printed."""
    said = {"std": options.std, "lower_is_better": lower_is_better(options), "command": command}
    if options.layout:
        from fedfacet.papers.layouts import load_layout, make_layout_table

        at, layout = options.at or "last", load_layout(options.layout)
        return make_layout_table(runs, layout, metric=options.metric, at=at, where=options.where, **said)
    from fedfacet.analysis.tables import make_table

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    at, metric = options.at or "both", options.metric or "test/acc_worst_group"
    return make_table(runs, rows=rows, columns=columns, metric=metric, at=at, **said)


def tabled(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[Table, str]":
    """Return a table and its text."""
    from fedfacet.analysis import writers

    table = table_of(options, runs, command)
    write = {"latex": writers.to_latex, "csv": writers.to_csv}.get(options.format)
    return table, (write or writers.to_markdown)(table)


def compared(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[Comparison, str]":
    """Return a comparison and its text, and draw it where that is asked for."""
    from fedfacet.analysis import comparison as comparing

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    comparison = comparing.compare_with(
        runs,
        options.compare,
        rows=rows,
        columns=columns,
        metric=options.metric or "test/acc_worst_group",
        at=options.at or "last",
        test=options.test or "permutation",
        lower_is_better=lower_is_better(options),
        command=command,
    )
    if options.forest:
        comparing.draw_comparison(comparison, options.forest)
    write = {"latex": comparing.comparison_latex, "csv": comparing.comparison_csv}.get(options.format)
    return comparison, (write or comparing.comparison_markdown)(comparison)


def curves(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[Curves, str]":
    """Draw a metric by round, and return it and the text about it."""
    from fedfacet.analysis import curves as drawing

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    found = drawing.curves_of(
        runs,
        rows=rows,
        columns=columns,
        metric=options.metric or "test/acc_worst_group",
        threshold=options.threshold,
        against=options.against or "round",
        std=options.std,
        lower_is_better=lower_is_better(options),
        command=command,
    )
    options.picture = options.picture or PICTURES / "curves.png"
    drawing.draw_curves(found, options.picture)
    write = {"latex": drawing.curves_latex, "csv": drawing.curves_csv}.get(options.format)
    return found, (write or drawing.curves_markdown)(found)


def times(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[TimeTo, str]":
    """Return how long runs took to reach targets on their devices, and its text."""
    from fedfacet.analysis import time_to as timing
    from fedfacet.analysis.tables import smaller_is_better

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    metric, targets = options.time_to
    found = timing.time_to(
        runs,
        metric=metric,
        targets=targets,
        rows=rows,
        columns=columns,
        std=options.std,
        lower_is_better=bool(options.lower_is_better or smaller_is_better(metric)),
        command=command,
    )
    if options.picture:
        timing.draw_times(found, options.picture)
    write = {"latex": timing.time_to_latex, "csv": timing.time_to_csv}.get(options.format)
    return found, (write or timing.time_to_markdown)(found)


def tradeoff(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[Tradeoff, str]":
    """Draw what attacks find against accuracies, and return it and the text about it."""
    from fedfacet.analysis import tradeoff as trading

    runs = fitting(options, runs)
    chosen = {key: [name.strip() for name in text.split(",")] for key in ("rows", "columns") if (text := getattr(options, key))}
    found = trading.tradeoff_of(runs, metric=options.metric or trading.METRIC, command=command, **chosen)
    options.picture = options.picture or PICTURES / "tradeoff.png"
    trading.draw_tradeoff(found, options.picture)
    write = {"latex": trading.tradeoff_latex, "csv": trading.tradeoff_csv}.get(options.format)
    return found, (write or trading.tradeoff_markdown)(found)


def selections(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "tuple[Selection, str]":
    """Draw who was selected, and return it and the text about it."""
    from fedfacet.analysis import selection as selecting

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    found = selecting.selection_of(runs, rows=rows, columns=columns, command=command)
    options.picture = options.picture or PICTURES / "selection.png"
    selecting.draw_selection(found, options.picture)
    lines = options.picture.with_suffix(".csv")
    lines.write_text(selecting.selection_csv(found), encoding="utf-8")
    write = {"latex": selecting.selection_latex, "csv": selecting.selection_csv}.get(options.format)
    return found, (write or selecting.selection_markdown)(found)


def page(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> None:
    """Write a page for the browser."""
    from fedfacet.pages.page import Asked, write_page

    rows, columns = ([key.strip() for key in text.split(",")] if text else [] for text in (options.rows, options.columns))
    asked = Asked(
        rows=rows,
        columns=columns,
        metric=options.metric,
        at=options.at,
        std=options.std,
        lower_is_better=options.lower_is_better,
        baseline=options.compare,
        test=options.test or "permutation",
        command=command,
    )
    write_page(fitting(options, runs), asked, options.html)


def overheads(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> str:
    """Return the text of what selecting clients costs."""
    from fedfacet.papers.feddiverse.overhead import measure_overheads, overhead_csv, overhead_markdown

    measured, unread = measure_overheads(fitting(options, runs))
    if not measured:
        raise ConfigError("Expected runs with metrics.csv and summary.json, but got none: name finished ones that fit --where.")
    return overhead_csv(measured) if options.format == "csv" else overhead_markdown(measured, unread, command)


def client_histograms(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> str:
    """Draw the clients; return the text to print."""
    from fedfacet.papers.participation import client_histograms as histograms

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    clients = histograms.measure_clients(runs, rows=rows, columns=columns, trust=options.trust)
    picture = options.output or PICTURES / "clients.png"
    lines = picture.with_suffix(".csv")
    histograms.plot_clients(clients, picture)
    lines.write_text(histograms.clients_csv(clients), encoding="utf-8")
    said = histograms.clients_markdown(clients, runs, command)
    return f"{said}\nwrote {picture} and {lines}\n"


def drawn(options: argparse.Namespace, runs: "Sequence[Run]") -> str:
    """Draw the figure; return the text to print."""
    from fedfacet.papers.feddiverse.sensitivity import METRIC, measure_sensitivity, plot_sensitivity

    sensitivity = measure_sensitivity(runs, metric=options.metric or METRIC, where=options.where)
    output = options.output or PICTURES / "sensitivity.png"
    plot_sensitivity(sensitivity, output)
    return f"wrote {output}: {sensitivity}."
