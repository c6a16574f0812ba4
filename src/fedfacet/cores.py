"""How many cores there are, and whether processes ask for more."""

import logging
import os

from fedfacet.errors import ConfigError

log = logging.getLogger(__name__)

MAX_THREADS = 1024
"""More torch threads than this are a slip of the keyboard."""

_MOST_PER_CORE = 16
"""More processes than this for each core are one too, and may leave a machine without memory."""


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(setting: str, number: int) -> None:
    """Refuse to start far more processes than there are cores.

    Args:
        setting: that asks for them, for the message.
        number: of processes.

    Raises:
        ConfigError: if there are more than 16 for each core.
    """
    if number > (most := _MOST_PER_CORE * num_cores()):
        raise ConfigError(
            f"Expected `{setting}` to ask for {most} processes at most, {_MOST_PER_CORE} for each core, but got {number}: give "
            "fewer."
        )


def crowded(processes: int, cores: int, remedy: str) -> bool:
    """Tell whether ``processes`` that train at the same time have several threads each and in all more than there are cores.

    Then also warn, with a remedy. Threads that share the work of one layer wait for each other in a loop, and so take the core
    from whom they wait for: two processes of two threads on two cores took fifty times as long as of one thread each.
    """
    import torch  # late: who only counts cores need not wait for it

    threads = torch.get_num_threads()
    if threads == 1 or processes * threads <= cores:
        return False
    log.warning(
        "%d processes of %d threads share %d cores, and will wait for each other more than they work: %s.",
        processes, threads, cores, remedy,
    )  # fmt: skip
    return True
