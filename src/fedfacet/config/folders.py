"""Where a run may be written to."""

import shutil
import tempfile
from pathlib import Path

from fedfacet.config.overrides import override_of
from fedfacet.errors import ConfigError
from fedfacet.storage.digests import LIST

MIN_FREE_BYTES = 64 << 20
"""Below this much free disk no run is started."""


LEFT_BEHIND = frozenset({".hydra", "train.log", "describe.log"})
"""What Hydra makes in a folder before a run begins."""


BEFORE_THE_FIRST_CHECKPOINT = LEFT_BEHIND | {"config.yaml", "partition.json", "partition.npz", "checkpoints", LIST}
"""What lies in the folder of a run that was killed as it began."""


def check_new(run_dir: Path, *, begun: bool = False) -> None:
    """Refuse a folder that cannot be written to, that lies in a run, or that holds anything.

    Args:
        run_dir: the run folder, which need not exist.
        begun: whether it may hold what a run writes before its first checkpoint, and which is written again.
    """
    check_writable(run_dir)
    if not begun and ((run_dir / "config.yaml").exists() or (run_dir / "metrics.csv").exists()):
        raise ConfigError(
            f"Expected a new output folder, but {run_dir} already holds a run: choose another paths.output_dir, or go on "
            f"with that run by `{override_of('resume', run_dir)}`."
        )
    for parent in run_dir.absolute().parents:
        if (parent / "config.yaml").exists() and (parent / "partition.json").exists():
            raise ConfigError(
                f"Expected an output folder outside of other runs', but {run_dir} lies in that of the run {parent}: choose "
                "another paths.output_dir."
            )
    held = {entry.name for entry in run_dir.iterdir()} if run_dir.is_dir() else set()
    if strangers := sorted(held - (BEFORE_THE_FIRST_CHECKPOINT if begun else LEFT_BEHIND)):
        remedy = "choose another paths.output_dir"
        if not set(strangers) - BEFORE_THE_FIRST_CHECKPOINT:
            remedy += ", or add resume=auto with it, which begins a run again that was killed before its first checkpoint"
        raise ConfigError(f"Expected a new or an empty output folder, but {run_dir} holds {strangers[0]!r}: {remedy}.")


def _is_there(path: Path) -> bool:
    """Tell whether a path exists; ``Path.exists`` of Python 3.14 also says no where that cannot be found out."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_writable(run_dir: Path) -> None:
    """Refuse a folder that cannot be written to, or whose disk is nearly full."""
    if run_dir.parts[:1] == ("~",):
        raise ConfigError(f"Expected a folder, but got {run_dir}, in which the shell has left the ~: write it out.")
    try:
        existing = next(parent for parent in [run_dir, *run_dir.absolute().parents] if _is_there(parent))
        with tempfile.TemporaryFile(dir=existing):  # asked for permission, root is told nothing about read-only systems
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise ConfigError(
            f"Expected a folder that can be written to for {run_dir}, but there is none ({error.strerror}): choose another "
            "paths.output_dir."
        ) from None
    if free < MIN_FREE_BYTES:
        raise ConfigError(
            f"Expected at least {MIN_FREE_BYTES >> 20} MiB of free disk for {run_dir}, but {free >> 20} MiB are left: free "
            "some, or choose another paths.output_dir."
        )
