"""The commands that the scripts in ``src/`` and the installed ``fedfacet`` run."""

import sys
from collections.abc import Sequence

from fedfacet import __version__


def called(name: str) -> str:
    """Return how the user called a command: ``fedfacet NAME``, as its dispatcher sets ``sys.argv[0]``, or the script."""
    return sys.argv[0] if sys.argv[0] == f"fedfacet {name}" else f"python src/{name}.py"


def is_answered(argv: Sequence[str], name: str, usage: str) -> bool:
    """Print what --version or --help asks for; tell whether one of them was there."""
    if "--version" in argv:
        print(f"fedfacet {__version__}")
        return True
    if {"-h", "--help"} & set(argv):
        from fedfacet.terminal import print_usage

        print_usage(usage.format(command=called(name)))
        return True
    return False


def output_of(options: Sequence[str]) -> tuple[str, list[str]]:
    """Return how a description is to be printed, and the other options."""
    others = [option for option in options if option not in ("output=json", "output=text")]
    return "json" if "output=json" in options else "text", others
