"""What the server of the workers imports: the libraries that are slow to load, and how a start ends that was cut short."""

import pickle
import sys
from types import TracebackType

import fedfacet.libraries  # noqa: F401


def print_unless_orphaned(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error, but not that what a process is to do ends in the middle: who was writing it down was killed."""
    if not issubclass(kind, EOFError | pickle.UnpicklingError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = print_unless_orphaned
