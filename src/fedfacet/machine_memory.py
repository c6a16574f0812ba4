"""How much memory the machine has to give, and how much this process has taken; each system tells it in another way."""

import os
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def available_memory() -> int:
    """Return the bytes that a new process may take without swapping; all that the machine has where it does not say."""
    if (reported := reported_memory()) is not None:
        return reported
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.virtual_memory().available)


def reported_memory() -> int | None:
    """Return the bytes that Linux says a new process may take without swapping; ``None`` on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has ever had."""
    if resource is not None:
        # ru_maxrss is in KiB on Linux and in bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    import psutil

    reported = psutil.Process().memory_info()
    return int(getattr(reported, "peak_wset", reported.rss))  # the first is Windows' own name for it
