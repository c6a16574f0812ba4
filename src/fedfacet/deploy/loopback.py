"""Sites as child processes of the server, each behind a pair of pipes: for tests, and for a pilot on one machine."""

import atexit
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedfacet.cores import check_processes
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.transport import Fault, Ticket
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.parallel.processes import process_context, sheltered


def serve(settings: SiteSettings, messages: Connection, answers: Connection) -> None:
    """Answer messages until the server is gone; the entry point of a child process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group, and the server decides
        signal.signal(number, signal.SIG_IGN)
    from fedfacet.deploy.site import Site, refusing  # late: the server's process does not read samples

    answer: Callable[[bytes], bytes]
    try:
        answer = Site(settings).answer
    except FedFacetError:
        answer = refusing()
    with contextlib.suppress(EOFError, OSError):
        while True:
            answers.send_bytes(answer(messages.recv_bytes()))


@dataclass(slots=True, eq=False)
class _Child:
    """A site's process, the messages that wait for it, and the one it is at."""

    settings: SiteSettings
    process: BaseProcess | None = None
    messages: Connection | None = None
    answers: Connection | None = None
    waiting: deque[tuple[Ticket, bytes]] = field(default_factory=deque)
    at: Ticket | None = None


class Loopback:
    """A transport to child processes; one that dies is started again for the next message.

    A site is written to only while it waits for a message, so that neither end waits for the other with a full pipe.

    Args:
        clients: the files ``client.yaml`` of the sites.
    """

    def __init__(self, *, clients: Sequence[str]) -> None:
        check_processes("deploy.clients", len(clients))
        found = [SiteSettings.read(Path(file)) for file in clients]
        self._children = {settings.site: _Child(settings) for settings in found}
        if len(self._children) < len(found):
            raise ConfigError("Expected `deploy.clients` of different sites, but two have the same name: fix their `site`.")
        self._number = 0
        atexit.register(self.close)  # or multiprocessing would wait for processes that hear no SIGTERM

    def sites(self) -> Mapping[str, bool]:
        """Return the sites; each can be reached, as its process is started when a message is sent."""
        return dict.fromkeys(self._children, True)

    def send(self, site: str, message: bytes) -> Ticket:
        """Put a message behind those that wait for the site."""
        self._number += 1
        ticket = Ticket(site, self._number)
        self._children[site].waiting.append((ticket, message))
        return ticket

    def poll(self, seconds: float) -> list[tuple[Ticket, bytes | Fault]]:
        """Hand out messages to idle sites, and return what has come."""
        came: list[tuple[Ticket, bytes | Fault]] = []
        for child in self._children.values():
            if child.at is None and child.waiting:
                self._hand_out(child)
        busy: dict[Any, _Child] = {child.answers: child for child in self._children.values() if child.at is not None}
        for end in connection.wait(list(busy), timeout=seconds):
            child = busy[end]
            assert child.at is not None
            assert child.answers is not None
            try:
                came.append((child.at, child.answers.recv_bytes()))
            except (EOFError, OSError):
                came.append((child.at, Fault(f"the process of {child.at.site} died")))
                _end(child)
            child.at = None
        return came

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Take messages back that are not sent yet."""
        gone = set(tickets)
        for child in self._children.values():
            child.waiting = deque(one for one in child.waiting if one[0] not in gone)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for child in self._children.values():
            child.waiting.clear()
            _end(child)
            child.at = None

    def pids(self) -> dict[str, int]:
        """Return the numbers of the processes that run."""
        return {site: child.process.pid for site, child in self._children.items() if child.process and child.process.pid}

    def _hand_out(self, child: _Child) -> None:
        ticket, message = child.waiting.popleft()
        child.at = ticket
        if child.process is None or child.messages is None:
            _start(child)
        assert child.messages is not None
        with contextlib.suppress(OSError):  # it is dead, which shows where its answer is read
            child.messages.send_bytes(message)


def _start(child: _Child) -> None:
    context = process_context()
    theirs, child.messages = context.Pipe(duplex=False)
    child.answers, their_answers = context.Pipe(duplex=False)
    child.process = context.Process(  # type: ignore[attr-defined]
        target=serve, args=(child.settings, theirs, their_answers), daemon=True, name=f"site {child.settings.site}"
    )
    with sheltered():
        child.process.start()
    theirs.close()
    their_answers.close()  # or the pipe would not end with the site


def _end(child: _Child) -> None:
    if child.process is not None and child.process.pid is not None:  # it may not have been started yet
        child.process.kill()
        child.process.join()
    for end in (child.messages, child.answers):
        if end is not None:
            end.close()
    child.process = child.messages = child.answers = None
