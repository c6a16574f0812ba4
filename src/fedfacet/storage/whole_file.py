"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Lend a file beside ``path`` to be written, which takes its place at one blow, or is removed where something goes wrong.

    Example:
        >>> import tempfile
        >>> from fedfacet.storage.whole_file import written_whole
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with written_whole(path) as unfinished:
        ...     _ = unfinished.write_text("whole")
        ...     path.exists()
        False
        >>> path.read_text()
        'whole'
    """
    unfinished = path.with_name(path.name + ".part")
    unfinished.unlink(missing_ok=True)  # in a folder of somebody else's it may lead elsewhere
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # there only if the disk is full or the process is stopped
