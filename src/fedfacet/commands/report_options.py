"""The options of ``report``, which ``report_options.yaml`` lists."""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fedfacet import __version__
from fedfacet.commands import called
from fedfacet.entry import print_error
from fedfacet.plots.style import SUFFIXES, WIDTHS

LAYOUTS = sorted(file.stem for file in (Path(__file__).parents[1] / "papers").glob("*/*table*.yaml"))

PICTURES = Path("logs/report")  # where pictures go unless `--output` says another place

_ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"

_TYPES = {"path": Path, "float": float}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print what is wrong as every command does, without the whole usage above it."""
        print_error(f"{message}. See {self.prog} --help.")
        sys.exit(2)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line, ``where`` as a mapping; leave with status 2 where they do not go together."""
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    parser = _parser(listed["options"])
    options = parser.parse_args(argv)
    _check_together(parser, options, listed)
    if options.time_to is not None:
        options.time_to = _targets(parser, options.time_to)
    if options.threshold is not None and not math.isfinite(options.threshold):
        parser.error(f"--threshold takes a finite number, but got {options.threshold}")
    if options.html and options.html.suffix not in (".html", ".htm"):
        parser.error(f"--html writes a page, so it takes a name that ends in .html, but got {options.html}")
    for name in ("picture", "forest", *(["output"] if options.clients or options.layout == "sensitivity" else [])):
        if (picture := getattr(options, name)) and picture.suffix not in SUFFIXES:
            parser.error(f"--{name} writes a picture, so it takes a name that ends in {_ENDINGS}, but got {picture}")
    if options.width is not None:
        options.width = _inches(parser, options.width)
    for name in ("where", "audit", "names"):
        options.__dict__[name] = _settings(parser, name, getattr(options, name))
    return options


def _parser(listed: Mapping[str, dict[str, Any]]) -> argparse.ArgumentParser:
    """Return what reads the options that are listed."""
    command = called("report")
    parser = _Parser(
        prog=command,
        description="Make a table of mean and standard deviation over seeds from run folders.",
        epilog=f"Examples: {command} logs/train/multiruns --rows selector --columns experiment; "
        f"{command} --layout table1 logs/train/cells",
    )
    parser.add_argument("--version", action="version", version=f"fedfacet {__version__}")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, folders that hold run folders, or glob patterns")
    texts = {
        "keys": "comma-separated config keys: Hydra groups (selector) or dotted keys (aggregator.server_lr)",
        "named": f"the name ends in {_ENDINGS}",
        "layouts": ", ".join(LAYOUTS),
        "pictures": PICTURES,
        "widths": " or ".join(f"{name}, {width} inches" for name, width in WIDTHS.items()),
    }
    listed["layout"]["choices"] = [*LAYOUTS, "sensitivity", "submodels_correlations", "submodels_spreads"]
    for name, how in listed.items():
        typed = {"type": _TYPES[how["type"]]} if "type" in how else {}
        parser.add_argument(f"--{name}", **{**how, **typed, "help": how["help"].format(**texts)})
    return parser


def _check_together(parser: argparse.ArgumentParser, options: argparse.Namespace, listed: Mapping[str, Any]) -> None:
    """Leave with status 2 where options do not go together."""
    given = {name: value for name, value in vars(options).items() if value not in (None, False)}
    settings_given = {*given, *(f"{name}={value}" for name, value in given.items() if isinstance(value, str))}
    for name, others, remedy in listed["apart"]:
        if name in settings_given and settings_given & set(others.split()):
            option, _, value = name.partition("=")
            parser.error(" ".join([f"--{option.replace('_', '-')}", *([value] if value else []), remedy]))
    for names, needed, sentence in listed["belong"]:
        if settings_given & set(names.split()) and not settings_given & set(needed.split()):
            parser.error(sentence)
    if options.layout and options.lower_is_better and not options.metric:
        parser.error("--layout knows which of its numbers are good: leave out --lower-is-better, or give --metric too")


def _targets(parser: argparse.ArgumentParser, given: str) -> tuple[str, list[float]]:
    """Return the metric and the targets of ``--time-to``."""
    metric, _, texts = given.partition("=")
    try:
        targets = [float(target) for target in texts.split(",")]
    except ValueError:
        parser.error(f"--time-to takes METRIC=TARGET,..., such as val/acc=0.9,0.95, but got {given!r}")
    if not metric or not all(map(math.isfinite, targets)):
        parser.error("--time-to takes METRIC=TARGET,... with finite targets, such as val/acc=0.9,0.95")
    return metric, targets


def _inches(parser: argparse.ArgumentParser, given: str) -> float:
    """Return the width of a picture in inches."""
    try:
        inches = WIDTHS.get(given) or float(given)
    except ValueError:
        inches = math.nan
    if not 1 <= inches <= 40:
        parser.error(f"--width takes {', '.join(WIDTHS)} or a number of inches between 1 and 40, but got {given!r}")
    return inches


def _settings(parser: argparse.ArgumentParser, name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return what was given as KEY=VALUE."""
    if wrong := [text for text in texts if "=" not in text]:
        parser.error(f"--{name} takes KEY=VALUE, but got {wrong[0]!r}")
    given = [text.split("=", 1) for text in texts]
    if twice := [key for key, _ in given if [other for other, _ in given].count(key) > 1]:
        parser.error(f"--{name} takes each key once, but got {twice[0]!r} twice: a run has one value of it")
    return dict(given)
