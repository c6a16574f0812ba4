"""NVIDIA FLARE as the carrier of messages: only FLARE opens sockets, proves who is who and encrypts.

The server's process talks to a job of FLARE's, the relay, through a pipe in a folder of its own on the same machine. The relay
hands messages to the sites, and is started anew where it has died or a site has come back, which FLARE lets into new jobs only.
"""

import contextlib
import json
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from fedfacet.deploy.startup_kit import certificate_fault
from fedfacet.deploy.transport import Fault, Ticket
from fedfacet.errors import ConfigError, EngineError, FedFacetError, first_line
from fedfacet.optional import required

log = logging.getLogger(__name__)

RELAY, EXECUTOR, TASK = "fedfacet.deploy.flare_job.Relay", "fedfacet.deploy.flare_job.SiteExecutor", "letter"
"""What a job of ours is made of; all of it is installed at the sites, and no other class of ours may be named to them."""

SETTINGS = "FEDFACET_CLIENT"
"""The variable of a site's environment that names its ``client.yaml``; no job can set it."""

_LOOKS_EVERY = 5.0  # seconds between questions to FLARE who is connected
_WRONG = ("InvalidArgumentError", "InvalidJobDefinition", "AuthorizationError")  # answers of FLARE that stay the same


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Lend a list of what is logged meanwhile, FLARE's reasons among it."""
    output: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: output.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield output
    finally:
        logging.getLogger().removeHandler(handler)


class Flare:
    """A transport through a running FLARE server, by the kit of somebody who may submit jobs; it logs in when it is needed.

    Args:
        kit: the folder of the startup kit, ``.../lead@pilot.org``.
        start_seconds: how long FLARE may take to log in, to do what it is asked, and to start a job.
    """

    def __init__(self, *, kit: str | None = None, start_seconds: float = 120.0) -> None:
        self.kit = kit
        self.start_seconds = start_seconds
        self._session: Any = None
        self._logged_in = False
        self._folder: Path | None = None
        self._line: Connection | None = None
        self._job: str | None = None
        self._number = 0
        self._open: dict[int, Ticket] = {}
        self._members: set[str] = set()  # of the job
        self._lost: set[str] = set()  # those of them that have left a message without an answer
        self._started: set[str] = set()  # those of them that were seen at work in the job
        self._last_status: tuple[float, dict[str, bool]] = (-1e9, {})
        self._came: list[tuple[Ticket, bytes | Fault]] = []

    def _log_in(self, seconds: float) -> Any:
        """Return a session.

        Raises:
            ConfigError: if there is no such kit, or FLARE does not let its holder in.
            Shortfall: if FLARE is not there.
        """
        from fedfacet.deploy.engine import Shortfall  # late: FLARE's own processes need none of it

        api = required("nvflare.fuel.flare_api.flare_api", extra="deploy", wanted_by="deploy=flare")
        place = Path(self.kit or "").absolute()
        try:
            admin = json.loads((place / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
        except (OSError, ValueError, LookupError, TypeError):
            raise ConfigError(
                f"Expected the startup kit of an admin in {place}, but it has no startup/fed_admin.json: give deploy.kit=DIR, "
                "a folder that `nvflare provision` has made."
            ) from None
        with _listening() as heard:
            try:
                return api.new_secure_session(admin["username"], str(place), timeout=seconds)
            except Exception as error:  # FLARE has a class for each way in which that fails, and no common one
                if (fault := certificate_fault("\n".join(heard), place)) is not None:
                    raise ConfigError(fault) from None
                sentence = f"Expected FLARE to let {admin.get('username')} in, but it says `{first_line(error)}`"
                if isinstance(error, ConnectionError):
                    raise Shortfall(f"{sentence}: see that its server runs") from None
                raise ConfigError(f"{sentence}: see that the kit is of the server's project.") from None

    def sites(self) -> Mapping[str, bool]:
        """Return the sites, and which of them answer FLARE; those that have come back are let in by a new job."""
        at_work = self._at_work()
        back = {site for site, works in at_work.items() if not works and (site in self._lost or site not in self._members)}
        if self._line is not None and not self._open and back:
            self._end_job()
        return dict.fromkeys(at_work, True)

    def send(self, site: str, message: bytes) -> Ticket:
        """Hand a message to the relay."""
        self._number += 1
        ticket = Ticket(site, self._number)
        self._open[ticket.number] = ticket
        if self._line is None:
            self._start_job()
        with self._while_it_lives() as line:
            line.send_bytes(json.dumps({"do": "send", "number": ticket.number, "site": site}).encode())
            line.send_bytes(message)
        return ticket

    def poll(self, seconds: float) -> list[tuple[Ticket, bytes | Fault]]:
        """Return what the relay has got."""
        until = time.monotonic() + seconds
        if self._line is not None and self._open:
            self._look_for_strays()
        while self._line is not None and self._line.poll(0 if self._came else max(0.0, until - time.monotonic())):
            with self._while_it_lives() as line:
                reply = json.loads(line.recv_bytes())
                content: bytes | Fault = line.recv_bytes()
                if "fault" in reply:
                    content = Fault(reply["fault"])
                if (ticket := self._open.pop(reply["number"], None)) is not None:
                    self._lost |= {ticket.site} if isinstance(content, Fault) else set()
                    self._came.append((ticket, content))
        if not self._came and self._line is None:
            time.sleep(max(0.0, until - time.monotonic()))
        came, self._came = self._came, []
        return came

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Have the relay take messages back; a site that is at work goes on, and its answer is left out."""
        numbers = [ticket.number for ticket in tickets]
        for number in numbers:
            if (ticket := self._open.pop(number, None)) is not None:
                self._lost.add(ticket.site)
        if self._line is not None and numbers:
            with self._while_it_lives() as line:
                line.send_bytes(json.dumps({"do": "cancel", "numbers": numbers}).encode())

    def close(self) -> None:
        """End the job and log out."""
        self._end_job()
        self._log_out()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _at_work(self, patient: bool = True) -> dict[str, bool]:
        """Return the sites that answer FLARE, and whether each has a job."""
        if time.monotonic() - self._last_status[0] > _LOOKS_EVERY:
            statuses = self._asked(_job_status, patient)
            answers: dict[str, bool] = {}
            for of in statuses:  # one for each job of a site
                if of["status"] != "no_reply":
                    answers[of["client_name"]] = answers.get(of["client_name"], False) or of["status"] == "started"
            self._last_status = time.monotonic(), answers
        return self._last_status[1]

    def _look_for_strays(self) -> None:
        """End the job if a site with a message is there and no longer in it, as after a quick start of its FLARE.

        FLARE's server takes such a site for the one that it was, and its job would wait for the answer for ever.
        """
        with contextlib.suppress(FedFacetError):  # a server that is gone shows at the pipe
            at_work = self._at_work(patient=False)
            self._started |= {site for site in self._members if at_work.get(site)}
            if any(at_work.get(ticket.site) is False and ticket.site in self._started for ticket in self._open.values()):
                self._end_job()
                self._fault_all()

    def _fault_all(self) -> None:
        self._came += [(ticket, Fault("FLARE's job has ended")) for ticket in self._open.values()]
        self._open.clear()

    def _asked(self, question: Callable[[Any], Any], patient: bool = True) -> Any:
        """Return FLARE's answer to a question to its session; what fails is asked again for a while, as FLARE may be busy.

        Raises:
            ConfigError: if FLARE has never let us in.
            EngineError: if FLARE has something against the question.
            Shortfall: if it has not answered within ``start_seconds``, or at once if not ``patient``.
        """
        from fedfacet.deploy.engine import Shortfall

        until, pause = time.monotonic() + (self.start_seconds if patient else 0.0), 0.5
        while True:
            try:
                if self._session is None:
                    self._session = self._log_in(max(1.0, until - time.monotonic()))
                    self._logged_in = True
                return question(self._session)
            except Exception as error:  # FLARE has a class for each fault, and no common one
                if isinstance(error, FedFacetError) and not self._logged_in:
                    raise
                fault = f"Expected FLARE to do what it was asked, but it says `{first_line(error)}`"
                if type(error).__name__ in _WRONG:
                    raise EngineError(f"{fault}: look at its server's log.txt.") from None
            if time.monotonic() + pause > until:
                raise Shortfall(f"{fault}, for {self.start_seconds if patient else 0:g} seconds: look at its server's log.txt")
            log.info("%s; it is asked again in %g seconds.", fault, pause)
            self._log_out()
            time.sleep(pause)
            pause = min(2 * pause, 10.0)

    def _log_out(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):  # whatever FLARE thinks of it, we are leaving
                session.close()

    @contextlib.contextmanager
    def _while_it_lives(self) -> Iterator[Connection]:
        """Lend the pipe to the relay; where that has died, every message under way has a fault."""
        assert self._line is not None
        try:
            yield self._line
        except (EOFError, OSError):
            self._line.close()
            self._line, self._job = None, None
            self._fault_all()

    def _start_job(self) -> None:
        """Submit a job to FLARE, and wait until its relay is there."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedfacet-flare-"))  # for this user alone
        number = f"{self._number:012d}"
        folder, address = self._folder / f"job_{number}", str(self._folder / f"relay_{number}")
        self._members, self._lost, self._started = set(self._at_work()), set(), set()
        _write_job(folder, address, self._members)
        heard: list[Connection] = []
        with Listener(address, family="AF_UNIX") as listener:
            waiter = threading.Thread(target=_accept, args=(listener, heard), daemon=True)
            waiter.start()
            token = uuid.uuid4().hex  # by which FLARE knows a job that it has taken, though its answer was lost
            self._job = self._asked(lambda session: session.submit_job(str(folder), submit_token=token))
            waiter.join(self.start_seconds)
        if not heard:
            from fedfacet.deploy.engine import Shortfall

            raise Shortfall(
                f"Expected FLARE to start a job within {self.start_seconds:g} seconds, but it did not: look at the server's "
                "log.txt, and that its kit was started by `serve.py start`"
            )
        self._line = heard[0]

    def _end_job(self) -> None:
        line, job = self._line, self._job
        self._line, self._job = None, None
        if line is None or job is None:
            return
        with contextlib.suppress(OSError):
            line.send_bytes(json.dumps({"do": "end"}).encode())
            line.poll(self.start_seconds)  # it closes its end when it is through
        line.close()
        with contextlib.suppress(Exception):  # a job that ends in an odd way ends all the same
            self._session.monitor_job(job, timeout=self.start_seconds, poll_interval=0.5)


def _job_status(session: Any) -> Any:
    """Return the jobs of all sites that are connected."""
    try:
        return session.get_client_job_status() or ()
    except Exception as error:
        if type(error).__name__ == "NoClientsAvailable":
            return ()
        raise


def _accept(listener: Listener, heard: list[Connection]) -> None:
    with contextlib.suppress(OSError):  # it was closed, as nobody came in time
        heard.append(listener.accept())


def _write_job(folder: Path, address: str, sites: Iterable[str]) -> None:
    """Write a job that has settings alone, no code: FLARE refuses others by the kits' authorization."""
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.2},
        "workflows": [{"id": "relay", "path": RELAY, "args": {"address": address}}],
    }
    client = {
        "format_version": 2,
        "default_task_fetch_interval": 0.05,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
    }
    where = {"app_server": ["server"], "app_site": sorted(sites)}
    meta = {"name": "fedfacet", "resource_spec": {}, "min_clients": 1, "deploy_map": where}
    for file, content in (
        (folder / "meta.json", meta),
        (folder / "app_server" / "config" / "config_fed_server.json", server),
        (folder / "app_site" / "config" / "config_fed_client.json", client),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2), encoding="utf-8")
