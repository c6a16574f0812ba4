"""Sites as child processes of the server, each behind a pipe: for tests, and for a pilot on one machine."""

import atexit
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedfacet.cores import check_processes
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.transport import Fault, Ticket
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.parallel.processes import Child, ignore_signals


def serve(pipe: Connection, settings: SiteSettings) -> None:
    """Answer messages until the server is gone; the entry point of a child process."""
    ignore_signals()
    from fedfacet.deploy.site import Site, refusing  # late: the server's process does not read samples

    answer: Callable[[bytes], bytes]
    try:
        answer = Site(settings).answer
    except FedFacetError:
        answer = refusing()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))


@dataclass(slots=True, eq=False)
class _Site:
    """A site's process, the messages that wait for it, and the one it is at."""

    settings: SiteSettings
    child: Child | None = None
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
        self._sites = {settings.site: _Site(settings) for settings in found}
        if len(self._sites) < len(found):
            raise ConfigError("Expected `deploy.clients` of different sites, but two have the same name: fix their `site`.")
        self._number = 0
        atexit.register(self.close)  # or multiprocessing would wait for processes that hear no SIGTERM

    def sites(self) -> Mapping[str, bool]:
        """Return the sites; each can be reached, as its process is started when a message is sent."""
        return dict.fromkeys(self._sites, True)

    def send(self, site: str, message: bytes) -> Ticket:
        """Put a message behind those that wait for the site."""
        self._number += 1
        ticket = Ticket(site, self._number)
        self._sites[site].waiting.append((ticket, message))
        return ticket

    def poll(self, seconds: float) -> list[tuple[Ticket, bytes | Fault]]:
        """Hand out messages to idle sites, and return what has come."""
        came: list[tuple[Ticket, bytes | Fault]] = []
        busy: dict[Any, _Site] = {}
        for site in self._sites.values():
            if site.at is None and site.waiting:
                _hand_out(site)
            if site.at is not None and site.child is not None:
                busy[site.child.connection] = site
        ready = connection.wait(list(busy), timeout=seconds)
        for end, site in busy.items():
            if end not in ready or site.at is None:
                continue
            try:
                came.append((site.at, end.recv_bytes()))
            except (EOFError, OSError):
                came.append((site.at, Fault(f"the process of {site.at.site} died")))
                _end(site)
            site.at = None
        return came

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Take messages back that are not sent yet."""
        gone = set(tickets)
        for site in self._sites.values():
            site.waiting = deque(one for one in site.waiting if one[0] not in gone)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for site in self._sites.values():
            site.waiting.clear()
            _end(site)
            site.at = None

    def pids(self) -> dict[str, int]:
        """Return the numbers of the processes that run."""
        return {name: site.child.process.pid for name, site in self._sites.items() if site.child and site.child.process.pid}


def _hand_out(site: _Site) -> None:
    if site.child is None:
        site.child = Child(serve, site.settings, name=f"site {site.settings.site}")
    site.at, message = site.waiting.popleft()
    with contextlib.suppress(OSError):  # it is dead, which shows where its answer is read
        site.child.connection.send_bytes(message)


def _end(site: _Site) -> None:
    if site.child is not None:
        site.child.kill()
        site.child = None
