"""Child processes that live as long as a run, and what each process sets for itself."""

import contextlib
import ctypes
import multiprocessing
import os
import platform
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_GIB = 1 << 30
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


class Child:
    """A process that this one has started, behind a duplex pipe.

    Args:
        target: is called there with its end of the pipe and the ``arguments``; it can be pickled, and they can.
        name: of the process.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any, name: str) -> None:
        context = process_context()
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=target, args=(theirs, *arguments), daemon=True, name=name
        )
        try:
            with sheltered():
                self.process.start()
        except BaseException:  # also that of a signal which came meanwhile
            self.kill()
            raise
        finally:
            theirs.close()  # or the pipe would not end with the process

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        if self.process.pid is not None:  # else it has not started
            self.process.kill()
            self.process.join()
        self.connection.close()


def ignore_signals() -> None:
    """Have this process hear no SIGTERM and no Ctrl-C: they reach all of a run's processes, and the one that drives decides."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def is_orphan() -> bool:
    """Tell whether the process that started this one is gone. What it held may be gone a moment earlier than itself."""
    if (parent := multiprocessing.parent_process()) is None:
        return False
    parent.join(timeout=1.0)
    return not parent.is_alive()


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees, where that is glibc; elsewhere do nothing.

    By itself glibc gives the memory of large activations back to the kernel when they are freed. The next step gets it again,
    page by page: a fifth of the time of a worker that trains HeteroFL's CNN. Small batches gain little. A run's numbers do not
    depend on it, and its peak memory grew by some 50 MB where it was measured.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if libc.mallopt(_M_MMAP_THRESHOLD, _GIB) or libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20):  # the most before glibc 2.35
        libc.mallopt(_M_TRIM_THRESHOLD, _GIB)
