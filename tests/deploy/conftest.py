"""A pilot on this machine, its two sites in this process, and a transport that meddles with messages on their way."""

import json

import pytest

from fedfacet.build import build, load_data, settle
from fedfacet.deploy.pilot import write_pilot
from fedfacet.deploy.protocol import unpack
from fedfacet.deploy.questions import known_queries
from fedfacet.deploy.server import build_server
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.site import Site
from fedfacet.deploy.transport import Ticket

BASE = (
    "experiment=digits_gsc", "partition.scale=0.1", "federation.rounds=3", "federation.cohort_size=3", "threads=1",
    "heterogeneity.bias_steps=2", "heterogeneity.attribute_steps=2", "model.width=4", "callbacks=csv_log", "logger=[]",
)  # fmt: skip
ROUNDS = 3


@pytest.fixture(scope="session")
def pilot(tmp_path_factory, job_of):
    """The folder of a pilot of two sites, with twelve clients of twenty images each."""
    folder = tmp_path_factory.mktemp("deploy") / "pilot"
    data = load_data(job_of("experiment=digits_gsc", "partition.scale=0.1"))
    write_pilot(data, "digits", folder, 2, queries=sorted(known_queries()))
    return folder


@pytest.fixture(scope="session")
def serve_job(pilot):
    """Return a function: overrides -> a settled configuration of the server, and all overrides."""
    from fedfacet.config import compose_job

    def job(*overrides, folder=pilot):
        every = [*BASE, *overrides, f"card={folder / 'card.yaml'}", f"roster={folder / 'roster.yaml'}"]
        config, _ = compose_job("serve", every)
        settle(config)
        return config, every

    return job


@pytest.fixture(scope="session")
def deployed(serve_job):
    """Return a function: (overrides, run folder, transport) -> the server's half of a federation, built but not begun."""

    def make(*overrides, run_dir, transport, **of_job):
        config, every = serve_job(*overrides, **of_job)
        return build_server(config, run_dir, transport=transport, overrides=every)

    return make


@pytest.fixture(scope="session")
def base():
    """The settings of every run here."""
    return BASE


@pytest.fixture(scope="session")
def simulated(job_of):
    """Return a function: (overrides, run folder) -> the same federation in one process, built but not begun."""

    def make(*overrides, run_dir):
        config = job_of(*BASE, *overrides)
        settle(config)
        return build(config, run_dir)

    return make


@pytest.fixture(scope="session")
def rounds_of():
    """Return a function that runs a federation's rounds and returns its metrics.csv."""

    def run(federation, rounds=ROUNDS):
        while federation.state.round < rounds:
            federation.run_round()
        return federation.callbacks["csv_log"].metrics.file.read_bytes()

    return run


@pytest.fixture
def lines_of():
    """Return a function: federation -> the lines of its journal."""
    return lambda federation: [json.loads(line) for line in federation.callbacks["journal"].file.read_text().splitlines()]


class Direct:
    """Sites that answer at once."""

    def __init__(self, *sites):
        self.by_name, self.came, self.number = {site.settings.site: site for site in sites}, [], 0

    def sites(self):
        return dict.fromkeys(self.by_name, True)

    def send(self, site, message):
        self.number += 1
        self.came.append((Ticket(site, self.number), self.by_name[site].answer(message)))
        return self.came[-1][0]

    def poll(self, seconds):
        came, self.came = self.came, []
        return came

    def cancel(self, tickets):
        pass

    def close(self):
        pass


@pytest.fixture(scope="session")
def sites_of():
    """Return a function: folder of a pilot -> a transport to its two sites, in this process."""
    return lambda folder: Direct(*(Site(SiteSettings.read(folder / f"site_{number}" / "client.yaml")) for number in (0, 1)))


class Meddler:
    """A transport around another: ``meddle(request, ticket, answer)`` returns what comes in the place of an answer."""

    def __init__(self, inner, meddle=None, *, before=None, there=None):
        self.inner, self.meddle, self.before, self.there = inner, meddle, before, there
        self.asked = {}
        self.extra = []

    def sites(self):
        return self.there(self.inner.sites()) if self.there else self.inner.sites()

    def send(self, site, message):
        request = unpack(message, len(message))
        if self.before:
            self.before(request, site)
        ticket = self.inner.send(site, message)
        self.asked[ticket] = request
        return ticket

    def poll(self, seconds):
        came = []
        for ticket, content in self.inner.poll(seconds):
            request = self.asked.get(ticket)
            came += [(ticket, content)] if self.meddle is None or request is None else self.meddle(request, ticket, content)
        came, self.extra = came + self.extra, []
        return came

    def cancel(self, tickets):
        self.inner.cancel(tickets)

    def close(self):
        self.inner.close()


@pytest.fixture(scope="session")
def meddler():
    return Meddler
