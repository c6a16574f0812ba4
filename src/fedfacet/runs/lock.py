"""One process at a time at a run folder; at the cells of a sweep many, by a lock in each that names its process."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedfacet.storage.run_files import json_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "lock"
"""In the folder of a cell, as long as a process works at it."""


PROCESSES = Path("/proc")
"""Where Linux tells of processes."""


class Process(NamedTuple):
    """A process, told apart from any other that has ever had its number.

    Attributes:
        host: the name of its machine.
        namespace: what its number is valid in; containers of one machine may have the same host and other numbers.
        pid: its number there.
        started: when it was started, in ticks since its machine was.
    """

    host: str
    namespace: str
    pid: int
    started: str | None

    def __str__(self) -> str:
        """Name it for a user."""
        return f"process {self.pid} on {self.host}" if self.host else "an unknown process"


UNKNOWN = Process("", "", 0, None)
"""Who holds a lock that cannot be read: a process that is just writing it, on another machine."""

_MOST_BYTES = 4096

WRITTEN_BY = 600.0
"""After so many seconds a lock that still cannot be read is nobody's: whoever wrote it has died over that."""


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[Process | None]:
    """Hold a folder's lock while entered, and yield ``None``; or yield the process that holds it.

    The lock is a file that names its process. One whose process is gone, which is known on its own machine only, counts for
    nothing; one of another machine has to be removed by hand if its process was killed.

    Args:
        folder: that one process at a time may work at; it exists.

    Raises:
        OSError: if the folder cannot be written to.
    """
    file, own = folder / LOCK_FILE, _process(os.getpid())
    holder = _take(file, own)
    try:
        yield holder
    finally:
        if holder is None and _read(file) == own:
            # Windows removes nothing that is being read; whoever reads it will find that the process is over.
            with contextlib.suppress(PermissionError) if fcntl is None else contextlib.nullcontext():
                file.unlink(missing_ok=True)


def holder_of(folder: Path) -> Process | None:
    """Return the process that works at a folder, or ``None``."""
    holder = _read(folder / LOCK_FILE)
    return holder if holder is not None and _may_be_alive(holder) else None


def _take(file: Path, own: Process) -> Process | None:
    """Write a lock, unless a process that may be alive holds it, which then is returned."""
    with _alone(file.parent.with_name(f".{LOCK_FILE}")):
        while True:
            try:
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)  # atomic, across machines too
            except FileExistsError:
                holder = _read(file)
                if holder is not None:  # it may have been given back just now
                    if _may_be_alive(holder):
                        return holder
                    file.unlink(missing_ok=True)
                continue
            try:
                with open(descriptor, "w", encoding="utf-8") as target:
                    json.dump(own._asdict(), target)
            except OSError:
                file.unlink(missing_ok=True)
                raise
            return None


@contextlib.contextmanager
def sole(file: Path) -> Iterator[bool]:
    """Hold a file while entered, and yield whether nobody else does; the system gives it back however a process ends.

    A file system that has no such locks lets everybody in. Windows would let nobody write to a locked file: there a second one
    beside it is locked.

    Args:
        file: made where it is not there; what it holds stays as it is.
    """
    if fcntl is None:
        file.touch()
        with _held(file.with_name(f"{file.name}.{LOCK_FILE}"), wait=False) as alone:
            yield alone
        return
    with open(file, "a", encoding="utf-8", opener=_no_link) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keep other processes of this machine from looking at a lock and removing it in the meantime."""
    if fcntl is None:
        with _held(file, wait=True):
            yield
        return
    with open(file, "a", encoding="utf-8", opener=_no_link) as guard:
        with contextlib.suppress(OSError):  # a file system that has no such locks: the moment is short
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _held(file: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a file that is there for that alone, where there is no fcntl; yield whether nobody else does."""
    from filelock import FileLock, Timeout

    held = FileLock(file, timeout=-1 if wait else 0)
    try:
        held.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def _read(file: Path) -> Process | None:
    """Return the process that a lock names; what is none of ours is ``UNKNOWN``'s for a while, and a link nobody's."""
    nobody = _process(os.getpid())._replace(started=None)  # one of this machine, and over
    try:
        if file.is_symlink():
            return nobody
        holder = Process(**json_of(file, _MOST_BYTES))
        kinds = (str, str, int, str | None)
        if all(isinstance(*pair) for pair in zip(holder, kinds, strict=True)) and str(holder).isprintable():
            return holder
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        pass
    with contextlib.suppress(OSError):
        if time.time() - file.lstat().st_mtime > WRITTEN_BY:
            return nobody
    return UNKNOWN


def _no_link(path: str, flags: int) -> int:
    """Open a file that is to be locked: no link, which leads elsewhere, and no pipe, which would be waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _may_be_alive(process: Process) -> bool:
    own = _process(os.getpid())
    if (process.host, process.namespace) != (own.host, own.namespace):
        return True
    return process.started is not None and _process(process.pid).started == process.started


def _process(pid: int) -> Process:
    """Return what this machine knows of a process; ``started`` is ``None`` where it is over."""
    if fcntl is None:  # Windows, where os.kill(pid, 0) would end the process
        return Process(socket.gethostname(), "", pid, _start_of(pid))
    if not PROCESSES.exists():  # macOS: only whether there is a process of that number
        return Process(socket.gethostname(), "", pid, "at some time" if _exists(pid) else None)
    try:
        state, *fields = (PROCESSES / f"{pid}/stat").read_text().rpartition(")")[2].split()
        started = None if state in "ZX" else fields[18]
    except OSError:
        started = None
    return Process(socket.gethostname(), os.readlink(PROCESSES / "self/ns/pid"), pid, started)


def _start_of(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
