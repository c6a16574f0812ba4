"""The commands that the scripts in ``src/`` and the installed ``fedfacet`` run."""

import sys


def called(name: str) -> str:
    """Return how the user called a command: ``fedfacet NAME``, as its dispatcher sets ``sys.argv[0]``, or the script."""
    return sys.argv[0] if sys.argv[0] == f"fedfacet {name}" else f"python src/{name}.py"
