"""The command of an installed package: ``fedfacet COMMAND ARGS``, or ``python -m fedfacet``; see ``USAGE``."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedfacet import __version__
from fedfacet.entry import enter, main_of, print_error
from fedfacet.waiting import waiting

if TYPE_CHECKING:
    from fedfacet.runs.job import Job

USAGE = """usage: fedfacet train|tune|describe|report|attack|serve|client ARGS

  train      train a federation: fedfacet train experiment=cmnist_gsc selector=uniform
  tune       search for settings: fedfacet tune 'optimizer.lr=tag(log,interval(0.01,0.3))'
  describe   tell how heterogeneous a federation is, without training: fedfacet describe partition=gsc
  report     make a table of run folders: fedfacet report logs/train/runs
  attack     tell what models give away of who trained them: fedfacet attack run=logs/train/runs/<time>
  serve      train a federation of real sites: fedfacet serve card=card.yaml roster=roster.yaml
  client     check a site of one, before it serves: fedfacet client check config=client.yaml

Data sets are looked for in data/ (or FEDFACET_DATA) and runs are written to logs/, both in the working folder. Options of your
own lie in a folder that "hydra.searchpath=[file:///FOLDER]" names, FOLDER/selector/mine.yaml for example.

"fedfacet train --help" lists all options, "fedfacet --version" says which version this is.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; return the exit status, with which the process exits if its own arguments are run.

    Args:
        argv: the command and its arguments; those of the process by default.
    """
    if argv is None:
        argv = sys.argv[1:]
        enter(partial(main, argv), tells=argv[:1] not in (["train"], ["tune"], ["serve"], ["client"]))
    command, arguments = (argv[0], argv[1:]) if argv else ("--help", [])
    if command in ("-h", "--help"):
        from fedfacet.terminal import print_usage

        print_usage(USAGE)
        return 0
    if command == "--version":
        print(f"fedfacet {__version__}")
        return 0
    if command == "train":
        sys.argv = [sys.argv[0], *arguments]  # which Hydra reads itself
        run_jobs()
        return 0
    if command in ("tune", "describe", "report", "attack", "serve", "client"):
        sys.argv[0] = f"fedfacet {command}"  # as which it names itself
        return main_of(command)(arguments)
    print_error(
        "Expected one of the commands train, tune, describe, report, attack, serve and client, but got "
        f"{command!r}: see --help."
    )
    return 2


def run_jobs(train: "Callable[[Job], None] | None" = None) -> None:
    """Have ``train``, or ``fedfacet.train``'s own way, run all jobs of the process's command line."""
    with waiting("fedfacet starts"):  # before Hydra loads
        from fedfacet.commands.train import run_command

        if train is None:
            from fedfacet.runs.run import fit

            train = fit
    run_command(train)


if __name__ == "__main__":
    sys.exit(main())
