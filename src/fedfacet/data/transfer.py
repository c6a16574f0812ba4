"""What fetching and unpacking share: room on the disk, faults of writing, and how far it is."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedfacet.errors import FedFacetError

_LINE_EVERY_SECONDS = 10.0


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise a ``FedFacetError`` if a disk has less room than is needed, in bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FedFacetError(
            f"Expected {decimal(needed)} of free disk space in {folder} to {purpose}, but got {decimal(free)}: make room, "
            "or name a folder on another disk with paths.data_dir=DIR."
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the system says against writing into a ``FedFacetError`` of one sentence."""
    try:
        yield
    except OSError as error:
        raise FedFacetError(
            f"Expected to be able to write in {folder}, but got {error}: make room there and run the command again, or name a "
            "folder on another disk with paths.data_dir=DIR."
        ) from error


def say(line: str) -> None:
    """Print a line to standard error."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(title: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many bytes are done: a bar on a terminal, else a line every ten seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
            task = bar.add_task(title, total=size)
            yield lambda done: bar.update(task, completed=done)
        return
    due = time.monotonic() + _LINE_EVERY_SECONDS

    def line(done: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_EVERY_SECONDS
            of = f" of {decimal(size)} ({done / size:.0%})" if size else ""
            say(f"{title}: {decimal(done)}{of}")

    yield line
