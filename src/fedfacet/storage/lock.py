"""One process at a time at a run folder; at the cells of a sweep many, by a lock in each that names its process."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from fedfacet.storage.regular_file import bytes_of

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

TOUCH_SECONDS = 60.0
"""So often a process renews its lock."""

LEASE_SECONDS = 600.0
"""After so long without that it is nobody's, unless its process is known to live; one that cannot be read as well."""


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[Process | None]:
    """Hold a folder's lock while entered, and yield ``None``; or yield the process that holds it.

    The lock is a file that names its process, and that the process touches now and then. One whose process is gone, which its
    own machine knows, counts for nothing; on other machines one that was not touched for ``LEASE_SECONDS``. A process that was
    silent for so long, and finds that another one works at its folder, ends at once: what it would write would be in the way.

    Args:
        folder: that one process at a time may work at; it exists.

    Raises:
        OSError: if the folder cannot be written to.
    """
    file, own = folder / LOCK_FILE, _process(os.getpid())
    holder = _take(file, own)
    try:
        with contextlib.nullcontext() if holder is not None else _renewed(file, own):
            yield holder
    finally:
        if holder is None and _read(file) == own:
            # Windows removes nothing that is being read; whoever reads it will find that the process is over.
            with contextlib.suppress(PermissionError) if fcntl is None else contextlib.nullcontext():
                file.unlink(missing_ok=True)


def holder_of(folder: Path) -> Process | None:
    """Return the process that works at a folder, or ``None``."""
    return _holder(folder / LOCK_FILE)


def _take(file: Path, own: Process) -> Process | None:
    """Write a lock, unless a process that may be alive holds it, which then is returned."""
    taking = file.with_name(f"{file.name}.taking")
    # Other processes of this machine may not look at a lock and remove it in the meantime.
    with _held(file.parent.with_name(f".{LOCK_FILE}"), wait=True):
        while True:
            if _made(file, own):
                return None
            if (holder := _holder(file)) is not None:
                return holder
            if not os.path.lexists(file):  # it was given back just now
                continue
            # It is nobody's. Who makes the second file, one process on whichever machine, may put it in the first one's place.
            if not _made(taking, own):
                if (rival := _holder(taking)) is not None:
                    return rival
                taking.unlink(missing_ok=True)  # its process has died over that
            elif os.path.lexists(file) and _holder(file) is None:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(taking, file)
                if _read(file) == own:
                    return None
            else:
                taking.unlink(missing_ok=True)


def _made(file: Path, own: Process) -> bool:
    """Write a lock where there is none; tell whether there was none."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)  # atomic, across machines too
    except FileExistsError:
        return False
    try:
        with open(descriptor, "w", encoding="utf-8") as target:
            json.dump(own._asdict(), target)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def _renewed(file: Path, own: Process) -> Iterator[None]:
    """Touch a lock now and then while entered."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # a server of files that is away for a while, or the folder is gone
                holder = _read(file)
                if holder == own:
                    os.utime(file)
                elif holder is None:
                    _made(file, own)
                elif holder.host and holder.started is not None:
                    _give_up(file.parent, own, holder)

    thread = threading.Thread(target=renew, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _give_up(folder: Path, own: Process, holder: Process) -> NoReturn:
    sentence = (
        f"error: Expected {folder} to be left to {own}, but {holder} took it after {LEASE_SECONDS:g} seconds without a sign of "
        "life: leave it to that, or give the same command again.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, sentence.encode())
    os._exit(1)


def sole(file: Path) -> contextlib.AbstractContextManager[bool]:
    """Hold a file while entered, and yield whether nobody else does; the system gives it back however a process ends.

    A file system that has no such locks lets everybody in. Windows would let nobody write to a locked file: there a second one
    beside it is locked.

    Args:
        file: made where it is not there; what it holds stays as it is.
    """
    if fcntl is None:
        file.touch()
    return _held(file if fcntl is not None else file.with_name(f"{file.name}.{LOCK_FILE}"), wait=False)


@contextlib.contextmanager
def _held(file: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a file while entered; yield whether nobody else does, for which ``wait`` waits."""
    if fcntl is None:
        from filelock import FileLock, Timeout

        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(FileLock(file, timeout=-1 if wait else 0))
                alone = True
            except Timeout:
                alone = False
            yield alone
        return
    with open(file, "a", encoding="utf-8", opener=_no_link) as held:
        alone = True
        try:
            fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            alone = False
        except OSError:  # a file system that has no such locks
            pass
        yield alone


def _read(file: Path) -> Process | None:
    """Return the process that a lock names; what is none of ours is ``UNKNOWN``'s, and a link nobody's."""
    nobody = _process(os.getpid())._replace(started=None)  # one of this machine, and over
    try:
        if file.is_symlink():
            return nobody
        holder = Process(**json.loads(bytes_of(file, _MOST_BYTES)))
        kinds = (str, str, int, str | None)
        if all(isinstance(*pair) for pair in zip(holder, kinds, strict=True)) and str(holder).isprintable():
            return holder
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return UNKNOWN


def _age(file: Path) -> float:
    """Return for how many seconds a lock was not touched, by the clock of the disk it lies on: those of machines differ."""
    guard = file.parent.with_name(f".{LOCK_FILE}")
    now = time.time()
    with contextlib.suppress(OSError, NotImplementedError):  # it is made by who takes a lock; not on Windows
        os.utime(guard, follow_symlinks=False)
        now = guard.lstat().st_mtime
    try:
        return now - file.lstat().st_mtime
    except OSError:  # it was given back just now
        return 0.0


def _no_link(path: str, flags: int) -> int:
    """Open a file that is to be locked: no link, which leads elsewhere, and no pipe, which would be waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _holder(file: Path) -> Process | None:
    """Return the process that a lock belongs to: one that lives, or may."""
    holder = _read(file)
    if holder is None:
        return None
    own = _process(os.getpid())
    if (holder.host, holder.namespace) != (own.host, own.namespace):
        return holder if _age(file) <= LEASE_SECONDS else None
    return holder if holder.started is not None and _process(holder.pid).started == holder.started else None


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
