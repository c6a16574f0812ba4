"""Where measured numbers come from: hardware, versions and commit, written beside them."""

import contextlib
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance(name: str, command: Sequence[str], *, load: float, device: str = "cpu") -> dict[str, Any]:
    """Return what is to be saved with the numbers of a run.

    Args:
        name: of the result.
        command: words of the command line.
        load: of the machine before anything was measured.
        device: ``"cuda"`` has the accelerator named too.
    """
    return {
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(command),
        "commit": _commit(),
        "hardware": {
            "processor": _processor(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
            "gpu": _gpu() if device == "cuda" else None,
            "load": load,
            "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("fedfacet", "torch", "lightning", "numpy")},
        },
    }


def headline(facts: dict[str, Any], remark: str = "") -> str:
    """Return the same in a line of Markdown, with a remark on the circumstances."""
    hardware = facts["hardware"]
    return (
        f"{facts['date']}, commit {facts['commit']}, {hardware['processor']}, {hardware['cpus']} CPUs, "
        f"{hardware['memory_gb']} GB{', ' + hardware['gpu'] if hardware['gpu'] else ''}, load {hardware['load']} at the start"
        f"{', ' + remark if remark else ''}; "
        + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        + "."
    )


def _processor() -> str:
    """Return the name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu() -> str:
    """Return the name of the first accelerator."""
    import torch

    return torch.cuda.get_device_name()


def _commit() -> str:
    """Return the commit of this checkout, with ``+`` where it has changes."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
