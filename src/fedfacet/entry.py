"""How every command begins and ends: with streams that can be written to, and with a sentence where something runs short."""

import contextlib
import errno
import importlib
import io
import os
import select
import signal
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, TextIO, cast

from fedfacet.errors import ConfigError, EngineError, FedFacetError, fault_of, first_line

_DISK = "free disk space", "free some, or choose another place"
_MEMORY = "enough memory", "close what else uses it, take fewer workers, smaller batches or a smaller model"
_PROCESSES = "more threads or processes", "take fewer workers or threads, or raise `ulimit -u` and `ulimit -v`"
_FILES = "more open files", "raise `ulimit -n`, or take fewer workers"
_SHORT = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EFBIG: ("files as large as that", "raise `ulimit -f`, or choose a disk that takes larger files"),
    errno.EROFS: ("a place that can be written to", "choose another one"),
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
}
_WORDS = {
    "No space left on device": _DISK,
    "can't start new thread": _PROCESSES,
    "Resource temporarily unavailable": _PROCESSES,
    "Too many open files": _FILES,
    "No usable temporary directory": ("a folder for temporary files", "set TMPDIR to one that can be written to"),
    **dict.fromkeys(("llocate memory", "not enough memory", "out of memory", "Out of memory", "MemoryError"), _MEMORY),
    **dict.fromkeys(("bad_alloc", "failed to map", "returned NULL without", "error return without"), _MEMORY),
}
"""What libraries say in words of their own -> what ran short, and the remedy."""


class Stream(io.RawIOBase):
    """The bytes of a standard stream. What cannot be written goes nowhere, and ``fault`` says why."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.fault: int | None = None
        try:
            os.fstat(number)
        except OSError:  # the process was started without it
            _lead_nowhere(number)

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def fileno(self) -> int:
        """Return the stream's number, which other processes and libraries write to."""
        return self._number

    def isatty(self) -> bool:
        """Tell whether somebody looks at it."""
        return os.isatty(self._number)

    def write(self, content: Any) -> int:
        """Write some of the content, and return how many bytes."""
        while True:
            try:
                return os.write(self._number, content)
            except BlockingIOError:  # a terminal that another program has made non-blocking
                select.select([], [self._number], [])
            except OSError as error:
                self.fault = error.errno
                _lead_nowhere(self._number)


def enter(command: Callable[[], int | None] | str, *, tells: bool = True) -> NoReturn:
    """Run a command, and exit with its status.

    The standard streams may be closed, full, or left by who read them: the command runs on. A message of the system that
    something ran short becomes a sentence, with status 2. Ctrl-C ends the process with status 130 as long as no part of the
    command has another idea. Pictures are drawn without a screen, whatever ``MPLBACKEND`` says.

    Args:
        command: returns an exit status; ``None`` is 0. A name is one that ``main_of`` takes.
        tells: whether what it prints is what it is for; then a stream that is full makes the status 2.
    """
    signal.signal(signal.SIGINT, leave)
    out, err = (Stream(number) for number in (1, 2))
    sys.stdout, sys.stderr = _text(out, sys.stdout, buffered=True), _text(err, sys.stderr, buffered=False)
    os.environ["MPLBACKEND"] = "agg"
    try:
        status = (main_of(command) if isinstance(command, str) else command)() or 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except Exception as error:
        of_a_file = isinstance(error, OSError) and error.filename is not None
        if not of_a_file and shortage(error) is None and at_import(error) is None:
            raise
        print_error(sentence_of(error))
        status = 2
    sys.stdout.flush()
    if out.fault not in (None, errno.EPIPE, errno.EBADF, errno.EIO):
        print_error(
            f"Expected standard output to take all that was printed, but {os.strerror(out.fault or 0)}: free some space."
        )
        status = status or 2 * tells
    sys.exit(status)


def main_of(command: str) -> Callable[..., int]:
    """Return the ``main`` of a module of ``fedfacet.commands``. None knows ranks: a process that is one of several exits."""
    if (started := num_started()) > 1:
        refusal = ConfigError(
            f"Expected one process for `{command}`, but {started} were started together: start it by itself, without torchrun "
            "and without engine=distributed."
        )
        if is_printed_here(refusal):
            print_error(refusal)
        sys.exit(2)
    return cast("Callable[..., int]", importlib.import_module(f"fedfacet.commands.{command}").main)


@contextlib.contextmanager
def reader_may_leave(stream: TextIO | None) -> Iterator[None]:
    """Print within this block, in a script of a user's, too; what a stream does not take goes nowhere."""
    try:
        yield
        if stream is not None:
            stream.flush()
    except (OSError, SystemExit):  # the latter is how rich ends a program whose reader has left
        if stream is None:
            raise
        _lead_nowhere(stream.fileno())


def is_printed_here(error: Exception) -> bool:
    """Tell whether this process reports an error: the first rank of a machine reports what all its ranks find."""
    return _of_launcher("LOCAL_RANK", "SLURM_LOCALID", "0") == "0" or isinstance(error, EngineError)


def num_started() -> int:
    """Return how many processes were started together, as ranks of one run."""
    return int(_of_launcher("WORLD_SIZE", "SLURM_NTASKS", "1"))


def leave(*_: object) -> None:
    """End the process at once, as Ctrl-C asks while there is nothing to save: before the first round and after the last.

    Not by KeyboardInterrupt: raised in the midst of OmegaConf it comes out as another error.
    """
    os._exit(128 + signal.SIGINT)


def print_error(sentence: object) -> None:
    """Print what is wrong; control characters, of names that come from elsewhere, are shown and do nothing."""
    print(f"error: {shown(str(sentence))}", file=sys.stderr)


def shown(text: str) -> str:
    r"""Return a text in which nothing but the end of a line moves the cursor.

    Example:
        >>> shown("a\x1b[31m")
        'a\\x1b[31m'
    """
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in hidden else sign.encode("unicode_escape").decode()
        for sign in text
    )


def sentence_of(error: Exception) -> str:
    """Return what is wrong in one sentence, also where Python, the system or a library has said it in words of its own."""
    sentence = str(error)
    if isinstance(error, FedFacetError) or sentence.startswith("Expected"):
        return sentence
    if (message := shortage(error) or at_import(error)) is not None:
        return message
    if isinstance(error, OSError) and error.filename is not None:
        return f"Expected to use {error.filename}, but {error.strerror}: choose another place, or allow it."
    fault = f"{type(error).__name__} ({first_line(error)})"
    return f"Expected settings that their parts take, but got {fault}: fix the overrides."


def shortage(error: BaseException) -> str | None:
    """Return which resource an error tells of, in a sentence; ``None`` for none."""
    if (found := short_of(error)) is None:
        return None
    lacking, remedy = found
    return f"Expected {lacking}, but there is none left ({first_line(error)}): {remedy}."


def short_of(error: BaseException) -> tuple[str, str] | None:
    """Return what ran short, and the remedy, if an error or one that it comes of is the system's word for that."""
    for one in _chain(error):
        if (number := getattr(one, "errno", None)) in _SHORT:
            return _SHORT[number]
        text = f"{type(one).__name__}: {one}"
        if (word := next((word for word in _WORDS if word in text), None)) is not None:
            return _WORDS[word]
    return None


def at_import(error: BaseException) -> str | None:
    """Return that a library cannot be imported, if an error comes of that; ``None`` if it does not."""
    for frame in _frames(error.__traceback__):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "<module>" and name not in ("fedfacet", "__main__", ""):
            message = fault_of(error)
            return (
                f"Expected to import {name}, but it fails ({message}): look at the environment variables that it reads, or "
                "install it again."
            )
    return None


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _text(raw: Stream, usual: TextIO | None, *, buffered: bool) -> io.TextIOWrapper:
    encoding = getattr(usual, "encoding", None) or "utf-8"
    by_line = raw.isatty() or not buffered
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", None, by_line, not buffered)


def _of_launcher(torchrun: str, slurm: str, alone: str) -> str:
    """Return a variable of the launcher that started this process.

    Tasks of SLURM are ranks of one run with ``engine=distributed`` only; else each has a command of its own.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.environ.get(torchrun, alone)
    return os.environ.get(slurm, alone) if "engine=distributed" in sys.argv else alone


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)

ECHO_SECONDS = 1.0
"""The same signal again within this time is the same wish: a scheduler tells the process group, and ``make`` passes it on."""


class Interruption:
    """While entered, hands the first SIGINT or SIGTERM to ``stop``; a second one acts as it always does.

    Args:
        stop: called with the signal's number, from within the handler: it may only take note of it.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._received: int | None = None
        self._at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        """Take over the signals."""
        self._previous = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._at = number, time.monotonic()
            self._stop(number)
            message = f"\n{signal.Signals(number).name}: stopping after the client in progress; once more to stop at once.\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # not print, which may just be at work and must not be entered twice
        elif number != self._received or time.monotonic() - self._at > ECHO_SECONDS:
            self.__exit__()
            signal.raise_signal(number)
