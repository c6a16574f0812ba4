"""What a terminal shows while libraries and data load."""

import contextlib
import shutil
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a line within this block, on a terminal only; the line is gone when the block is left.

    The cursor stands at its start, so that what is printed meanwhile writes over it.

    Args:
        what: goes on meanwhile.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    line = f"{what} ..."[: max(0, shutil.get_terminal_size().columns - 1)]  # a line that wraps cannot be taken back
    print(f"\r{line}\r", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)
