"""What a tree of processes holds and uses."""

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from types import TracebackType

SECONDS_BETWEEN_LOOKS = 0.2
PROC = Path("/proc")


def tree_of(root: int) -> list[int]:
    """Return the ids of a process and of all that descend from it."""
    parents = dict(_parents())
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def memory_of(root: int) -> int:
    """Return the bytes that a process and its descendants hold.

    Where the kernel says so (Linux) a page that n processes share counts as 1/n for each of them (PSS), so that shared memory
    and forked copies are counted once; elsewhere it is the sum of what is resident, which counts them again and again.
    """
    tree = tree_of(root)
    if (PROC / "self" / "smaps_rollup").exists():
        return sum(map(_pss, tree))
    listed = subprocess.run(["ps", "-o", "rss=", "-p", ",".join(map(str, tree))], capture_output=True, text=True).stdout
    return 1024 * sum(map(int, listed.split()))


def core_seconds_of(root: int) -> float:
    """Return how long a process and its descendants have been on a core, all threads together; NaN where nobody says so."""
    if not (PROC / "self" / "stat").exists():
        return float("nan")
    ticks = 0
    for pid in tree_of(root):
        with contextlib.suppress(OSError):  # it may have left meanwhile
            ticks += sum(map(int, _stat(PROC / str(pid))[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Looks again and again while a ``with`` block lasts, and once more at its end; not for use while something is timed.

    Args:
        root: id of the process at the top of the tree.
    """

    def __init__(self, root: int) -> None:
        self.bytes = 0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Look for the last time."""
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, memory_of(self._root))


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):  # it may have left meanwhile
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _parents() -> list[tuple[int, int]]:
    """Return (process, parent) of every process."""
    if not (PROC / "self" / "stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
        return [(int(pid), int(parent)) for pid, parent in map(str.split, listed.splitlines())]
    pairs = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pairs.append((int(entry.name), int(_stat(entry)[1])))
    return pairs


def _stat(process: Path) -> list[str]:
    """Return what the kernel says of a process, from its state on."""
    # The name in parentheses may hold spaces and parentheses of its own.
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
