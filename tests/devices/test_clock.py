"""A federation on devices: what its rounds take, who is late, lost or empty, and what stays of that."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.callbacks.summary import Summary
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.compatibility import check_devices, check_pairs
from fedfacet.devices.base import Calendar
from fedfacet.devices.synthetic import DiurnalDevices, LognormalDevices, MobileEdgeDevices, TierDevices, UniformDevices
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.methods.lag import LAG, Silence
from fedfacet.participation import Participation, Stragglers
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage import checkpoint
from fedfacet.storage.run_files import rows_of
from fedfacet.termination import EnergyTermination, SimulatedTimeTermination
from fedfacet.types import DEVICES

PARTS = ("ask", "download", "compute", "upload", "wait")
SLOW = {"seconds_per_sample": 1.0, "down_mbps": 0.01, "up_mbps": 0.005}
"""Sixteen samples take sixteen seconds."""


class Chosen(ClientSelector):
    """A cohort said beforehand, which may be of any size, after questions to others."""

    sizes_itself = True

    def __init__(self, *cohort, asked=()):
        self.cohort = cohort
        self.asked = asked

    def select(self, server, context):
        if self.asked:
            context.ask(LocalLoss(), self.asked)
        return [k for k in self.cohort if k in context.available]


class Scripted(Participation):
    def __init__(self, **outcomes):
        self.outcomes = {int(name[1:]): part for name, part in outcomes.items()}

    def outcome(self, client_id, draw):
        return self.outcomes.get(client_id, 1.0)


class Tiers(TierDevices):
    """Client k has the k-th kind."""

    def kinds(self, num_clients):
        return list(self.tiers)


def tiers(*seconds_per_sample, **more):
    kinds = {
        f"kind{k}": {"share": 1, "seconds_per_sample": seconds, "down_mbps": 1.0, "up_mbps": 1.0}
        for k, seconds in enumerate(seconds_per_sample)
    }
    return Tiers(tiers=kinds, **more)


@pytest.fixture
def run(tiny_federation):
    """Return a function that runs some rounds: devices -> (federation, results)."""

    def make(devices, rounds=3, **settings):
        federation = tiny_federation(devices=devices, rounds=rounds, **settings)
        return federation, [federation.run_round() for _ in range(rounds)]

    return make


def floats(federation):
    return state.num_floats(federation.facts.model)


# --- a round by hand -------------------------------------------------------------------------------------------------------


def test_a_round_by_hand(run):
    federation, (result,) = run(UniformDevices(**SLOW, server_seconds=2, joules_per_sample=3, joules_per_byte=0.5), 1)
    size = 4 * floats(federation)
    sim = {name.removeprefix("sim/"): value for name, value in result.metrics.items() if name.startswith("sim/")}
    assert sim["download"] == pytest.approx(size / 1250)
    assert sim["upload"] == pytest.approx(size / 625)
    assert (sim["compute"], sim["wait"], sim["ask"], sim["late"], sim["dead"]) == (16, 2, 0, 0, 0)
    assert sim["seconds"] == sim["clock"] == pytest.approx(18 + size / 1250 + size / 625)
    assert sim["joules"] == pytest.approx(2 * (16 * 3 + 2 * size * 0.5))
    assert sim["bytes_down"] == sim["bytes_up"] == 2 * size
    assert result.durations == pytest.approx(dict.fromkeys(result.cohort, 16 + size / 1250 + size / 625))


def test_oort_s_duration_is_samples_by_seconds_and_bytes_by_rate(run):
    """Oort's simulation: computing time of batch size, steps and inference latency times three, and size over bandwidth."""
    ms = 5.0
    federation, (result,) = run(UniformDevices(seconds_per_sample=3 * ms / 1000, down_mbps=2, up_mbps=2), 1)
    kilobits = 8 * 4 * floats(federation) / 1000
    theirs = 3 * 8 * 2 * ms / 1000 + 2 * kilobits / 2000
    assert all(seconds == pytest.approx(theirs, rel=1e-12) for seconds in result.durations.values())


def test_what_is_asked_takes_time_too(run):
    """A client outside the cohort is sent the model for it; one of the cohort has that anyway."""
    devices = UniformDevices(**SLOW, forward_share=0.25, joules_per_sample=1)
    federation, (result,) = run(devices, 1, selector=Chosen(0, asked=(0, 2)), cohort_size=1)
    size = 4 * floats(federation)
    assert result.metrics["sim/ask"] == pytest.approx(size / 1250 + 16 * 0.25 + 4 / 625)
    assert result.metrics["sim/joules"] == pytest.approx(16 + 2 * 16 * 0.25)
    assert result.metrics["sim/bytes_down"] == 2 * size
    _, (alone,) = run(devices, 1, selector=Chosen(0, asked=(0,)), cohort_size=1)
    assert alone.metrics["sim/ask"] == pytest.approx(16 * 0.25 + 4 / 625)


@pytest.mark.parametrize(
    "devices",
    [
        LognormalDevices(sigma=1.5, jitter=0.3, radio_jitter=0.2, server_seconds=0.1),
        LognormalDevices(sigma=1.5, uplink="sequential", deadline=0.4, on_late="drop"),
        LognormalDevices(sigma=2, overcommit=1.5, jitter=0.1),
        MobileEdgeDevices(deadline=20, on_late="partial"),
        DiurnalDevices(mean_seconds_per_sample=500, duty_cycle=0.4),
    ],
)
def test_parts_add_up_to_seconds_and_seconds_to_the_clock(devices, run):
    federation, results = run(devices, 6)
    for result in results:
        assert math.fsum(result.metrics[f"sim/{part}"] for part in PARTS) == result.metrics["sim/seconds"]
        assert all(result.metrics[f"sim/{part}"] >= 0 for part in PARTS)
        assert set(result.durations) == set(result.arrived)
    assert sum(result.metrics["sim/seconds"] for result in results) == pytest.approx(federation.state.slots["devices"]["clock"])


# --- nothing but time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", [UniformSelector(), AllSelector()])
@pytest.mark.parametrize(
    "devices", [UniformDevices(), LognormalDevices(jitter=0.2), MobileEdgeDevices(deadline=1e-3, on_late="wait")]
)
def test_devices_that_are_waited_for_change_no_model(devices, selector, run, plain):
    """``on_late=wait`` does not look at a deadline, and without one nobody is late."""
    with_them, results = run(devices, selector=selector, participation=Stragglers())
    without, others = run(None, selector=selector, participation=Stragglers())
    assert plain(replace(with_them.state, slots={})) == plain(without.state)
    for one, other in zip(results, others, strict=True):
        assert {name: v for name, v in one.metrics.items() if not name.startswith("sim/")} == other.metrics
        assert not other.durations


def test_the_order_of_a_cohort_does_not_matter(run):
    devices = LognormalDevices(sigma=1, jitter=0.3, uplink="sequential", overcommit=1.5, joules_per_sample=1)
    (one, (first,)), (two, (second,)) = (run(devices, 1, selector=Chosen(*cohort)) for cohort in ((0, 2, 3), (3, 0, 2)))
    assert first.durations == second.durations
    assert one.state.slots["devices"]["clock"] == two.state.slots["devices"]["clock"]
    assert one.state.slots["devices"]["joules"] == two.state.slots["devices"]["joules"]


def test_a_resumed_clock_is_the_same(run, tiny_federation, plain, tmp_path):
    devices = DiurnalDevices(
        mean_seconds_per_sample=300, jitter=0.3, joules_per_sample=1, battery_joules=40, charge_watts=1e-3, duty_cycle=0.6
    )
    whole, _ = run(devices, 6)
    for stop in range(1, 6):
        first, _ = run(devices, stop)
        checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", first.state, {})
        then = tiny_federation(devices=devices, rounds=6)
        then.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
        then.fit()
        assert plain(then.state) == plain(whole.state)


def test_a_clock_of_other_devices_is_refused(run, tiny_federation):
    federation, _ = run(UniformDevices(), 1)
    with pytest.raises(CheckpointError, match="a checkpoint of the same `devices`"):
        tiny_federation(devices=UniformDevices(up_mbps=6)).restore(federation.state)


# --- who is late -----------------------------------------------------------------------------------------------------------


def test_who_is_late_is_dropped_and_still_costs(run):
    """Clients take 1.6, 16 and 32 seconds and a little for the model; the server waits for 20."""
    devices = tiers(0.1, 1, 2, 3, deadline=20, on_late="drop", joules_per_sample=1)
    federation, (result,) = run(devices, 1, selector=Chosen(0, 1, 2))
    travel = 4 * floats(federation) / 125_000
    assert result.arrived == (0, 1)
    assert result.cohort == (0, 1, 2)
    assert result.metrics["sim/late"] == 1
    assert result.metrics["sim/seconds"] == pytest.approx(20)
    assert result.metrics["sim/wait"] == pytest.approx(20 - 16 - 2 * travel)
    assert result.metrics["sim/joules"] == pytest.approx(32 + (20 - travel) / 2)
    assert result.ledger.floats_down == 3 * floats(federation)
    assert result.ledger.floats_up == 2 * floats(federation)


def test_who_would_be_late_does_the_steps_that_fit(run):
    """Eight steps of two samples; a client with 3 seconds a sample does three of them, one with 30 none."""
    devices = tiers(0.1, 3, 30, 1, deadline=20, on_late="partial")
    local = LocalTraining(batch_size=2)
    _, (result,) = run(devices, 1, selector=Chosen(0, 1, 2), local=local)
    assert [(receipt.client_id, receipt.num_steps) for receipt in result.receipts] == [(0, 8), (1, 3)]
    assert result.metrics["sim/compute"] == pytest.approx(18)
    assert result.metrics["sim/seconds"] == pytest.approx(20)  # client 2 is waited for


def test_the_smaller_part_counts(run):
    devices = tiers(0.1, 3, 1, 1, deadline=20, on_late="partial")
    participation = Scripted(c0=0.5, c1=0.9, c2=0.0)
    local = LocalTraining(batch_size=2)
    _, (result,) = run(devices, 1, selector=Chosen(0, 1, 2), local=local, participation=participation)
    assert [(receipt.client_id, receipt.num_steps) for receipt in result.receipts] == [(0, 4), (1, 3)]
    assert result.metrics["sim/late"] == 0  # client 2 dropped out by itself


def test_more_are_asked_than_are_wanted(run):
    devices = tiers(4, 3, 2, 1, overcommit=1.5, joules_per_sample=1)
    federation, (result,) = run(devices, 1, cohort_size=2)
    assert len(result.cohort) == 3
    assert sorted(result.arrived) == sorted(result.cohort)[-2:]
    slower = 16 * (4 - min(result.arrived))
    assert result.metrics["sim/compute"] == slower
    assert result.ledger.floats_down == 3 * floats(federation)
    assert 16 * 2 < result.metrics["sim/joules"] < 16 * 3


@pytest.mark.parametrize(
    ("overcommit", "wanted", "asked"), [(1.1, 10, 11), (1.3, 10, 13), (1.0, 7, 7), (1.3, 1, 2), (2, 50, 80)]
)
def test_how_many_are_asked(overcommit, wanted, asked, tiny_federation):
    federation = tiny_federation(devices=UniformDevices(overcommit=overcommit))
    assert (
        federation.find(SimulatedDevices).clock.num_slots(wanted, 80)
        == asked
        == min(math.ceil(Fraction(str(overcommit)) * wanted), 80)
    )


def test_all_of_a_round_in_which_all_are_asked_on_purpose_count(run):
    _, (result,) = run(tiers(1, 1, 1, 1, overcommit=1.5), 1, selector=Chosen(0, 1, 2, 3), cohort_size=2)
    assert len(result.arrived) == 4


# --- who is away -----------------------------------------------------------------------------------------------------------


class Hours(UniformDevices):
    """All but client 0 are always on-line; that one from 100 to 110 seconds of every 1000."""

    def calendar(self, num_clients):
        hours = [(np.array([100.0]), np.array([110.0]))] + [(np.array([0.0]), np.array([1000.0]))] * (num_clients - 1)
        return Calendar(*map(tuple, zip(*hours, strict=True)), np.full(num_clients, 1000.0))


def test_who_goes_off_line_is_lost(run):
    federation, (result,) = run(Hours(**SLOW), 1, selector=Chosen(0, 1), cohort_size=2)
    assert result.cohort == (1,)
    federation.state = replace(federation.state, slots={"devices": {**federation.state.slots["devices"], "clock": 1105.0}})
    result = federation.run_round()
    assert result.cohort == (0, 1)
    assert result.arrived == (1,)
    assert result.metrics["sim/late"] == 1


def test_where_nobody_is_on_line_the_clock_goes_on(run):
    alone = {"matrices": ([[6, 2], [2, 6]],), "cohort_size": 1}
    _, results = run(Hours(seconds_per_sample=0.01), 3, selector=Chosen(0, 1), **alone)
    assert [len(result.arrived) for result in results] == [0, 1, 1]
    assert results[0].metrics["sim/seconds"] == results[0].metrics["sim/wait"] == pytest.approx(100, abs=1e-5)


def test_an_empty_battery_ends_it_and_a_charged_one_begins_again(run):
    """A round takes 16 J: two fit into 40 J."""
    devices = UniformDevices(**SLOW, joules_per_sample=1, battery_joules=40)
    _, results = run(devices, 4, selector=Chosen(0), cohort_size=1)
    assert [len(result.arrived) for result in results] == [1, 1, 0, 0]
    assert results[-1].metrics["sim/dead"] == 1
    assert results[-1].metrics["sim/seconds"] == 0
    devices.charge_watts = 0.1
    federation, results = run(devices, 9, selector=Chosen(0, 1, 2, 3))
    used = sum(result.metrics["sim/joules"] for result in results)
    assert federation.state.slots["devices"]["joules"] == pytest.approx(used)
    lacking = federation.state.slots["devices"]["lacking"]
    assert isinstance(lacking, torch.Tensor)
    assert ((lacking >= 0) & (lacking <= 40)).all()
    assert federation.state.participation_counts.min() > 2


# --- what stays of it ------------------------------------------------------------------------------------------------------


def test_time_and_energy_end_a_run(tiny_federation):
    devices = UniformDevices(**SLOW, joules_per_sample=1, battery_joules=40)
    timed = tiny_federation(devices=devices, rounds=9, termination=SimulatedTimeTermination(hours=0.01), cohort_size=1)
    timed.fit()
    assert timed.state.stopped.endswith("simulated hours have passed, 0.01 were given")
    assert timed.state.slots["devices"]["clock"] >= 36 > timed.state.slots["devices"]["clock"] * (1 - 1 / timed.state.round)
    drained = tiny_federation(devices=devices, rounds=9, termination=EnergyTermination(dead_share=0.5), selector=AllSelector())
    drained.fit()
    assert drained.state.round == 2
    assert drained.state.stopped == "4 of 4 clients have less energy than a round takes"


def test_files(tiny_federation, tmp_path):
    callbacks = {"csv": CsvLog(run_dir=tmp_path), "summary": Summary(run_dir=tmp_path, facts={}, model_config={})}
    federation = tiny_federation(devices=LognormalDevices(joules_per_sample=2), callbacks=callbacks)
    federation.fit()
    rows = rows_of(tmp_path / "devices.csv")
    assert [row["client"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[1]["compute_seconds"]) == pytest.approx(16 * float(rows[1]["seconds_per_sample"]))
    told = json.loads((tmp_path / "summary.json").read_text())["devices"]
    assert told["hours"] * 3600 == pytest.approx(federation.state.slots["devices"]["clock"])
    assert told["joules"] == federation.state.slots["devices"]["joules"]
    assert "sim/clock" in rows_of(tmp_path / "metrics.csv")[0]


def test_a_selector_learns_how_long_clients_took(run):
    class Watches(UniformSelector):
        def observe(self, server, result, updates, rng):
            return {**server, **{f"{result.round}": sorted(result.durations)}}

    class Nothing(Callback):
        pass

    federation, results = run(LognormalDevices(), 2, selector=Watches(), callbacks={"nothing": Nothing()})
    assert federation.state.selector == {str(result.round): sorted(result.cohort) for result in results}


# --- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "fault"),
    [
        (tiers(1, 2, 3, 4, deadline=5, on_late="drop"), r"that somebody can meet, 16\.\d+ seconds or more, but got 5"),
        (tiers(1, 2, 3, 4, deadline=5, on_late="partial"), r"that somebody can meet, 8\.\d+ seconds or more, but got 5"),
    ],
)
def test_a_deadline_that_nobody_can_meet_is_refused(devices, fault, tiny_federation):
    with pytest.raises(ConfigError, match=fault):
        tiny_federation(devices=devices)


def test_parts_that_do_not_go_with_devices_are_refused(tiny_clients):
    class Clocked(UniformSelector):
        requires = frozenset({DEVICES})

    def check(devices, selector, **others):
        check_pairs({"selector": selector, "devices": devices, **others}, {"selector": "clocked"})

    with pytest.raises(ConfigError, match="provides 'devices', which selector=clocked requires"):
        check(None, Clocked())
    with pytest.raises(ConfigError, match="provides 'devices', which termination=EnergyTermination requires"):
        check(None, UniformSelector(), termination=EnergyTermination())
    with pytest.raises(ConfigError, match=r"selector=clocked to go with devices=.*, but it asks all: choose another"):
        check(UniformDevices(overcommit=1.1), AllSelector())
    with pytest.raises(ConfigError, match=r"selector=clocked to go with devices=.*, but it decides itself how many"):
        check(UniformDevices(overcommit=1.5), Chosen(0))
    with pytest.raises(ConfigError, match=r"transforms=Silence to go with devices=.*, but it may send nothing"):
        check(UniformDevices(), UniformSelector(), aggregator=LAG(), **{"transforms.0": Silence()})
    check(UniformDevices(overcommit=1.1), UniformSelector())
    clients, names = tiny_clients(), {}
    with pytest.raises(ConfigError, match="Expected devices with batteries for termination=EnergyTermination"):
        check_devices(clients, UniformDevices(), EnergyTermination(), names)
    check_devices(clients, UniformDevices(battery_joules=5), EnergyTermination(), names)


def test_the_engine_does_not_matter(tiny_federation):
    devices = LognormalDevices(jitter=0.3, deadline=0.35, on_late="partial", joules_per_sample=1)
    clocks = []
    for engine in (SequentialEngine(device="cpu"), VectorizedEngine(device="cpu")):
        federation = tiny_federation(devices=devices, rounds=3, engine=engine)
        clocks.append([federation.run_round().metrics for _ in range(3)])
    for one, other in zip(*clocks, strict=True):
        assert all(one[name] == other[name] for name in one if name.startswith("sim/"))
        assert one["train/num_steps"] == other["train/num_steps"]
