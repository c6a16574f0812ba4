"""Run folders in, a table out: ``python src/report.py RUNS... --rows selector --columns experiment``, or a paper's layout."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedfacet.analysis.runs import Run
    from fedfacet.analysis.tables import Table

LAYOUTS = sorted(file.stem for file in (Path(__file__).parent / "fedfacet" / "analysis" / "layouts").glob("*table*.yaml"))


PICTURES = Path("logs/report")
"""Where pictures go unless ``--output`` says another place."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="report.py",
        description="Make a table of mean and standard deviation over seeds from run folders.",
        epilog="Examples: python src/report.py logs/train/multiruns --rows selector --columns experiment; "
        "python src/report.py --layout table1 logs/train/cells",
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, folders that hold run folders, or glob patterns")
    keys = "comma-separated config keys: Hydra groups (selector) or dotted keys (aggregator.server_lr)"
    parser.add_argument(
        "--rows", metavar="KEYS", help=f"{keys}; default: selector, and before it setting where the runs differ in it"
    )
    parser.add_argument("--columns", metavar="KEYS", help="likewise; default: experiment")
    parser.add_argument(
        "--layout",
        choices=[*LAYOUTS, "sensitivity"],
        metavar="TABLE",
        help="rows, columns and numbers of a paper's table instead, FedDiverse's where no other name is said: "
        f"{', '.join(LAYOUTS)}; sensitivity draws FedDiverse's figure 4, {PICTURES}/sensitivity.png or --output",
    )
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only runs with this setting; may be repeated"
    )
    parser.add_argument("--metric", help="default: test/acc_worst_group, or what the layout shows")
    parser.add_argument(
        "--at",
        choices=("last", "best", "both"),
        help="last round, best round by validation; default: both, in a layout the last as in the paper",
    )
    parser.add_argument(
        "--std",
        choices=("population", "sample"),
        default="population",
        help="divide by n (population, as in the FedDiverse paper) or by n - 1; default: population",
    )
    parser.add_argument("--lower-is-better", action="store_true", help="the smallest value of a column is its best")
    parser.add_argument("--format", choices=("markdown", "latex", "csv"), help="default: markdown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--overhead",
        action="store_true",
        help="what selecting clients costs instead: FedDiverse's table 2 beside what the runs' ledgers say",
    )
    parser.add_argument(
        "--clients",
        action="store_true",
        help="histograms instead, of how often clients were selected and of each one's accuracy on its own samples: a "
        f"picture, {PICTURES}/clients.png or --output, and beside it a csv file with a line per client. --rows and --columns "
        "tell its panels apart; models are measured anew, which takes the data set",
    )
    options = parser.parse_args(argv)
    others = (options.layout, options.overhead, options.metric, options.at, options.lower_is_better, options.format)
    if options.clients and any(others):
        parser.error("--clients writes a picture and a csv file of its own: leave out what chooses another")
    if options.clients and options.output and options.output.suffix != ".png":
        parser.error(f"--clients writes a picture, so --output takes a name that ends in .png, but got {options.output}")
    chosen = (options.layout, options.rows, options.columns, options.metric, options.at, options.lower_is_better)
    if options.overhead and (any(chosen) or options.format == "latex"):
        parser.error("--overhead has a table of its own, in Markdown or CSV: leave out what chooses another")
    if options.layout and (options.rows or options.columns):
        parser.error("--layout has rows and columns of its own: leave out --rows and --columns")
    if options.layout and options.lower_is_better and not options.metric:
        parser.error("--layout knows which of its numbers are good: leave out --lower-is-better, or give --metric too")
    if options.layout == "sensitivity" and (options.at or options.format):
        parser.error("--layout sensitivity draws a picture: leave out --at and --format")
    if wrong := [text for text in options.where if "=" not in text]:
        parser.error(f"--where takes KEY=VALUE, but got {wrong[0]!r}")
    options.where = dict(text.split("=", 1) for text in options.where)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write the table; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    # Late, so that --help and misspelt options answer at once.
    from fedfacet.analysis import writers
    from fedfacet.analysis.runs import find_runs
    from fedfacet.analysis.tables import SeedTwiceError
    from fedfacet.errors import FedFacetError

    write = {"markdown": writers.to_markdown, "latex": writers.to_latex, "csv": writers.to_csv}[options.format or "markdown"]
    command = shlex.join(["python", "src/report.py", *argv])
    try:
        runs = find_runs(options.runs)
        if options.layout == "sensitivity":
            print(drawn(options, runs))
            return 0
        if options.clients:
            print(client_histograms(options, runs, command), end="")
            return 0
        if options.overhead:
            table, text = None, overheads(options, runs, command)
        else:
            table = laid_out(options, runs, command) if options.layout else tabulated(options, runs, command)
            text = write(table)
        if options.output:
            options.output.write_text(text, encoding="utf-8")
    except (FedFacetError, OSError) as error:
        rows = error.rows if isinstance(error, SeedTwiceError) else ()
        ready = f" Ready to run: {shlex.join(with_rows(argv, rows))}" if rows else ""
        print(f"{error}{ready}", file=sys.stderr)
        return 2
    print(f"wrote {options.output}\n" if options.output else text, end="")
    if options.format == "csv" and table:
        # The file has no room for them, and they must not get lost.
        for sentence in (table.caption, *(f"Note: {note}" for note in table.notes)):
            print(sentence, file=sys.stderr)
    return 0


def tabulated(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "Table":
    """Return the table whose rows and columns the user names."""
    from fedfacet.analysis.tables import make_table

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    return make_table(
        runs,
        rows=rows,
        columns=columns,
        metric=options.metric or "test/acc_worst_group",
        at=options.at or "both",
        std=options.std,
        lower_is_better=options.lower_is_better,
        command=command,
    )


def with_rows(argv: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return the command with other rows."""
    kept, number = [], 0
    while number < len(argv):
        if argv[number] == "--rows":
            number += 1
        elif not argv[number].startswith("--rows="):
            kept.append(argv[number])
        number += 1
    return ["python", "src/report.py", *kept, "--rows", ",".join(rows)]


def fitting(options: argparse.Namespace, runs: "Sequence[Run]") -> "list[Run]":
    """Return the runs that fit ``--where``."""
    from fedfacet.errors import ConfigError

    found = [run for run in runs if run.fits(options.where)]
    if not found:
        values = {key: sorted({str(run.setting(key)) for run in runs}) for key in options.where}
        have = "; ".join(f"{key} is {' or '.join(texts)}" for key, texts in values.items())
        raise ConfigError(f"Expected runs that fit --where, but none of {len(runs)} does: {have}.")
    return found


def heads(options: argparse.Namespace, runs: "Sequence[Run]") -> tuple[list[str], list[str]]:
    """Return the keys of rows and columns."""
    settings = {run.setting("setting") or "federated" for run in runs}
    rows = options.rows or ("selector" if len(settings) == 1 else "setting,selector")
    return [key.strip() for key in rows.split(",")], [key.strip() for key in (options.columns or "experiment").split(",")]


def client_histograms(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> str:
    """Draw the clients; return what is to be said of them."""
    from fedfacet.analysis.client_histograms import clients_csv, clients_markdown, measure_clients, plot_clients

    runs = fitting(options, runs)
    rows, columns = heads(options, runs)
    clients = measure_clients(runs, rows=rows, columns=columns)
    picture = options.output or PICTURES / "clients.png"
    lines = picture.with_suffix(".csv")
    plot_clients(clients, picture)
    lines.write_text(clients_csv(clients), encoding="utf-8")
    said = clients_markdown(clients, [run for run in runs if not run.finished], command)
    return f"{said}\nwrote {picture} and {lines}\n"


def overheads(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> str:
    """Return the text of what selecting clients costs."""
    from fedfacet.analysis.overhead import measure_overheads, overhead_csv, overhead_markdown
    from fedfacet.errors import ConfigError

    measured, unread = measure_overheads(fitting(options, runs))
    if not measured:
        raise ConfigError("Expected runs with metrics.csv and summary.json, but got none: name finished ones that fit --where.")
    return overhead_csv(measured) if options.format == "csv" else overhead_markdown(measured, unread, command)


def laid_out(options: argparse.Namespace, runs: "Sequence[Run]", command: str) -> "Table":
    """Return the table as the paper prints it."""
    from fedfacet.analysis.layouts import load_layout, make_layout_table

    return make_layout_table(
        runs,
        load_layout(options.layout),
        metric=options.metric,
        at=options.at or "last",
        std=options.std,
        where=options.where,
        lower_is_better=options.lower_is_better,
        command=command,
    )


def drawn(options: argparse.Namespace, runs: "Sequence[Run]") -> str:
    """Draw the figure; return what is to be said of it."""
    from fedfacet.analysis.sensitivity import METRIC, measure_sensitivity, plot_sensitivity

    sensitivity = measure_sensitivity(runs, metric=options.metric or METRIC, where=options.where)
    output = options.output or PICTURES / "sensitivity.png"
    plot_sensitivity(sensitivity, output)
    return f"wrote {output}: {sensitivity}."


if __name__ == "__main__":
    sys.exit(main())
