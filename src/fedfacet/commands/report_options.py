"""The options of ``report``."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from fedfacet import __version__
from fedfacet.commands import called
from fedfacet.plots.figure import SUFFIXES

LAYOUTS = sorted(file.stem for file in (Path(__file__).parents[1] / "papers").glob("*/*table*.yaml"))

PICTURES = Path("logs/report")  # where pictures go unless `--output` says another place


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line, ``where`` as a mapping; leave with status 2 where they do not go together."""
    command = called("report")
    parser = argparse.ArgumentParser(
        prog=command,
        description="Make a table of mean and standard deviation over seeds from run folders.",
        epilog=f"Examples: {command} logs/train/multiruns --rows selector --columns experiment; "
        f"{command} --layout table1 logs/train/cells",
    )
    parser.add_argument("--version", action="version", version=f"fedfacet {__version__}")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, folders that hold run folders, or glob patterns")
    endings = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    named = f"the name ends in {endings}"
    keys = "comma-separated config keys: Hydra groups (selector) or dotted keys (aggregator.server_lr)"
    parser.add_argument(
        "--rows", metavar="KEYS", help=f"{keys}; default: selector, and before it setting where the runs differ in it"
    )
    parser.add_argument(
        "--columns", metavar="KEYS", help="the same for columns; default: experiment, or dataset where one is your own"
    )
    parser.add_argument(
        "--layout",
        choices=[*LAYOUTS, "sensitivity", "submodels_correlations"],
        metavar="TABLE",
        help="print a paper's table instead, with its rows, columns and numbers (FedDiverse's unless the name says another): "
        f"{', '.join(LAYOUTS)}; submodels_correlations prints the thesis' tables 7 and 8; sensitivity draws FedDiverse's "
        f"figure 4 into {PICTURES}/sensitivity.png or --output",
    )
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only runs with this setting; may be repeated"
    )
    parser.add_argument(
        "--audit",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with metrics of attacks: only audits whose threat model has this, for example moment=received or "
        "shadow_models.epochs=25; may be repeated",
    )
    parser.add_argument("--metric", help="default: test/acc_worst_group, or what the layout shows")
    parser.add_argument(
        "--at",
        choices=("last", "best", "tail", "both", "all"),
        help="last round, best round by validation, or tail, the mean of the last tenth of the rounds; both is the first two, "
        "all is all three; default: both, and the last with --layout, as in the papers, and with --compare",
    )
    parser.add_argument(
        "--std",
        choices=("population", "sample"),
        default="population",
        help="divide by n (population, as in the FedDiverse paper) or by n - 1; default: population",
    )
    parser.add_argument(
        "--lower-is-better",
        action="store_true",
        help="the smallest value of a column is its best; losses, gaps between groups and spreads over clients need no word",
    )
    parser.add_argument("--format", choices=("markdown", "latex", "csv"), help="default: markdown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--compare",
        metavar="ROW",
        help="compare every row with this one instead, seed by seed: difference, 95%% intervals, p-values with Holm's "
        "correction over the table, and how many seeds would decide",
    )
    parser.add_argument(
        "--test",
        choices=("permutation", "t"),
        help="with --compare: whose p-values are corrected; the default, permutation, flips signs and assumes nothing else, "
        "but with n seeds no p-value is below 2^(1-n)",
    )
    parser.add_argument(
        "--forest", type=Path, metavar="FILE.png", help=f"with --compare: draw the differences there as well; {named}"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="PAGE.html",
        help="write one page for the browser there instead, which needs no network: accuracies, curves, groups, clients, who "
        "was selected, in what the runs differ and their digests; the paired comparison with --compare ROW, or, where five "
        "seeds are paired, with the row of uniform or else the first. Default of --rows and --columns: what runs differ in; "
        "of --metric: test/acc and test/acc_worst_group; of --at: all",
    )
    parser.add_argument(
        "--curves",
        action="store_true",
        help="show the metric by round instead: print where it ended, its peak and how soon it got to --threshold, and draw "
        f"mean and standard deviation over seeds into {PICTURES}/curves.png or --picture",
    )
    parser.add_argument(
        "--threshold", type=float, metavar="NUMBER", help="with --curves: count rounds to this value, percent for accuracies"
    )
    parser.add_argument(
        "--against",
        choices=("round", "bytes", "sim/clock"),
        help="with --curves: what is drawn to the right; bytes are those that all clients together have received and sent, "
        "sim/clock is the simulated time of runs with devices, in minutes",
    )
    parser.add_argument(
        "--time-to",
        metavar="METRIC=TARGET,...",
        help="print the simulated minutes until a metric reaches targets instead, of runs with devices; for example "
        "val/acc=0.9,0.95",
    )
    parser.add_argument(
        "--tradeoff",
        action="store_true",
        help="show what attacks find beside how accurate models are instead, the thesis' figures 7b and 9: print both, and "
        f"draw them into {PICTURES}/tradeoff.png or --picture; markers tell --rows apart (default: submodel, and model.width "
        "where runs differ in it), colours --columns (default: capacity.num_whole, or model.width where no run has that); "
        "--metric is what attacks find (default: attack/mean/auc), or a gap between groups, such as "
        "test/fair/equal_opportunity, which has markers for methods and colours for aggregators; where each marker stands for "
        "one point, the points have names instead",
    )
    parser.add_argument(
        "--selection",
        action="store_true",
        help="show who was selected instead: print how evenly, how soon everybody and how alike two --rows choose, draw rounds "
        f"and clients into {PICTURES}/selection.png or --picture, and write a csv file beside it",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE.png",
        help=f"with --curves, --tradeoff, --time-to, --selection: where to draw; {named}",
    )
    parser.add_argument(
        "--overhead",
        action="store_true",
        help="print what selecting clients costs instead: FedDiverse's table 2 beside the runs' ledgers",
    )
    parser.add_argument(
        "--clients",
        action="store_true",
        help="draw histograms instead, of how often clients were selected and of each client's accuracy on its own samples, "
        f"into {PICTURES}/clients.png or --output, with a csv file beside it that has a line per client. --rows and --columns "
        "tell the panels apart. The models are measured anew, which takes the data set",
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="with --clients: code of this module may be used where a run names it, besides fedfacet's; may be repeated",
    )
    options = parser.parse_args(argv)
    chosen = (options.layout, options.metric, options.at, options.lower_is_better)
    if options.compare and any((options.layout, options.overhead, options.clients)):
        parser.error("--compare makes a table of its own: leave out --layout, --overhead and --clients")
    if options.curves and any((options.layout, options.at, options.overhead, options.clients, options.compare)):
        parser.error("--curves shows all rounds: leave out --layout, --at, --compare, --overhead and --clients")
    others = (options.layout, options.at, options.overhead, options.clients, options.compare, options.curves)
    if options.tradeoff and any((*others, options.lower_is_better)):
        parser.error("--tradeoff has metrics and rounds of its own: leave out what chooses others")
    if options.time_to is not None:
        if any((*others, options.tradeoff, options.metric)):
            parser.error("--time-to has a metric and a table of its own: leave out what chooses others")
        metric, _, targets = options.time_to.partition("=")
        try:
            options.time_to = metric, [float(target) for target in targets.split(",")]
        except ValueError:
            parser.error(f"--time-to takes METRIC=TARGET,..., such as val/acc=0.9,0.95, but got {options.time_to!r}")
        if not metric or not all(map(math.isfinite, options.time_to[1])):
            parser.error("--time-to takes METRIC=TARGET,... with finite targets, such as val/acc=0.9,0.95")
    shown = (*others, options.tradeoff, options.time_to)
    if options.selection and any((*shown, options.metric, options.lower_is_better)):
        parser.error("--selection has a table of its own: leave out what chooses others")
    if options.html and any((*others[:1], *others[2:4], options.curves, options.tradeoff, options.time_to, options.selection)):
        parser.error("--html has tables and pictures of its own: leave out what chooses others")
    if options.html and any((options.format, options.output, options.forest)):
        parser.error("--html writes a page: leave out --format, --output and --forest")
    if options.html and options.html.suffix not in (".html", ".htm"):
        parser.error(f"--html writes a page, so it takes a name that ends in .html, but got {options.html}")
    if not options.curves and options.against:
        parser.error("--against belongs to --curves: add --curves")
    if not options.curves and options.threshold is not None:
        parser.error("--threshold belongs to --curves: add --curves")
    if not (options.curves or options.tradeoff or options.time_to or options.selection) and options.picture:
        parser.error("--picture belongs to --curves, --tradeoff, --time-to and --selection: add one of them")
    if options.threshold is not None and not math.isfinite(options.threshold):
        parser.error(f"--threshold takes a finite number, but got {options.threshold}")
    if not options.compare and (options.test or options.forest):
        parser.error("--test and --forest belong to --compare: add --compare ROW")
    if options.clients and any((*chosen, options.overhead, options.format)):
        parser.error("--clients writes a picture and a csv file of its own: leave out what chooses another")
    pictures = {"picture": options.picture, "forest": options.forest}
    if options.clients or options.layout == "sensitivity":
        pictures["output"] = options.output
    for name, picture in pictures.items():
        if picture and picture.suffix not in SUFFIXES:
            parser.error(f"--{name} writes a picture, so it takes a name that ends in {endings}, but got {picture}")
    if options.overhead and (any((*chosen, options.rows, options.columns)) or options.format == "latex"):
        parser.error("--overhead has a table of its own, in Markdown or CSV: leave out what chooses another")
    if options.layout and (options.rows or options.columns):
        parser.error("--layout has rows and columns of its own: leave out --rows and --columns")
    if options.layout and options.lower_is_better and not options.metric:
        parser.error("--layout knows which of its numbers are good: leave out --lower-is-better, or give --metric too")
    if options.layout == "sensitivity" and (options.at or options.format):
        parser.error("--layout sensitivity draws a picture: leave out --at and --format")
    if options.layout == "submodels_correlations" and any((options.at, options.format, options.metric)):
        parser.error("--layout submodels_correlations has a table of its own, in Markdown: leave out what chooses another")
    for name in ("where", "audit"):
        if wrong := [text for text in getattr(options, name) if "=" not in text]:
            parser.error(f"--{name} takes KEY=VALUE, but got {wrong[0]!r}")
        given = [text.split("=", 1) for text in getattr(options, name)]
        if twice := [key for key, _ in given if [other for other, _ in given].count(key) > 1]:
            parser.error(f"--{name} takes each key once, but got {twice[0]!r} twice: a run has one value of it")
        setattr(options, name, dict(given))
    return options
