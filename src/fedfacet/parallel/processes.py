"""Starting child processes that live as long as a run."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@contextlib.contextmanager
def sheltered() -> Iterator[None]:
    """Have processes that are started while entered hear no SIGTERM and no Ctrl-C, and import nothing from the working folder.

    A signal to the process group is this process's to act on. What starts now inherits that it does not hear it, and this
    process acts on it when the others have started: half a start would leave errors of multiprocessing's. The tracker of
    multiprocessing starts first, since its start would have the signal heard again. Windows has neither.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def process_context() -> BaseContext:
    """Return how to start processes: from a server that has imported what is slow to import, where there can be one.

    A fork of this process itself would copy locks that its threads hold at the time.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedfacet.parallel.start", "lightning"])  # ours is not found where it is not installed
    return context


def is_orphan() -> bool:
    """Tell whether the process that started this one is gone. What it held may be gone a moment earlier than itself."""
    if (parent := multiprocessing.parent_process()) is None:
        return False
    parent.join(timeout=1.0)
    return not parent.is_alive()
