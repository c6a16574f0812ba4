"""A run goes on where nobody reads any longer what it says, as after ``| head``."""

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def reader_may_leave(stream: TextIO) -> Iterator[None]:
    """Print within this block; once nobody reads the stream, what it is told goes nowhere."""
    try:
        yield
        stream.flush()
    except (BrokenPipeError, SystemExit):  # the latter is how rich ends a program upon the former
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
