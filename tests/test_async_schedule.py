"""Clients that train while the server goes on: against FedAvg, against events one by one, and across a stop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.capacities import ProportionsCapacity
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.compatibility import check_pairs
from fedfacet.devices.synthetic import DiurnalDevices, LognormalDevices, MobileEdgeDevices, UniformDevices
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.methods.fedbuff import FedBuff
from fedfacet.participation import Dropouts
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.poisson import PoissonSelector
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage import checkpoint
from fedfacet.types import Broadcast, ClientTask, ClientUpdate

MATRICES = [[[4, 4], [4, 4]], [[9, 1], [1, 1]], [[1, 1], [1, 20]], [[2, 2], [2, 2]], [[6, 6], [6, 6]], [[1, 0], [0, 1]]]
DEVICES = {"sigma": 1.5, "jitter": 0.2, "joules_per_sample": 2.0}


@pytest.fixture
def make(tiny_federation):
    """Return a function that makes a federation of six clients, two updates a round, four of them at work."""

    def of(*, aggregator=None, devices=None, cohort_size=2, **settings):
        aggregator = aggregator or FedBuff(concurrency=4)
        devices = devices or LognormalDevices(**DEVICES)
        return tiny_federation(matrices=MATRICES, aggregator=aggregator, devices=devices, cohort_size=cohort_size, **settings)

    return of


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in right)


def test_a_stale_update_by_hand():
    """1 / sqrt(1 + 3) of an update of 4, and all of one of 1: (2 + 1) / 2. The divisor is K and not the sum of discounts."""

    def update(client_id, delta, staleness):
        one = ClientUpdate(client_id, {"w": torch.tensor([delta])}, {}, 10, 1, 1.0, {})
        return replace(one, staleness=staleness)

    _, model = FedBuff().aggregate({}, {"w": torch.zeros(1)}, [update(0, 4.0, 3), update(1, 1.0, 0)])
    assert model["w"].item() == 1.5


def test_with_as_many_at_work_as_make_a_round_it_is_fedavg(make):
    """Bit for bit, and in the same time."""
    own, plain = make(aggregator=FedBuff(concurrency=2)), make(aggregator=FedAvg())
    for _ in range(4):
        a, b = own.run_round(), plain.run_round()
        assert {name: a.metrics[name] for name in b.metrics} == pytest.approx(dict(b.metrics), rel=1e-12)
        assert a.metrics["train/staleness"] == 0
        assert same(own.state.model, plain.state.model)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_rounds_are_those_of_events_one_by_one(make, exponent):
    """Clients are sent off and come back along a line of time, and whoever comes back has trained then and there."""
    federation = make(aggregator=FedBuff(concurrency=4, staleness_exponent=exponent, server_lr=0.7))
    twin = make()  # its engine trains, and its clock knows how long that takes
    now, model, at_work, joules, staleness = 0.0, twin.state.model, [], 0.0, []
    for round in range(1, 9):
        result = federation.run_round()
        for client_id in result.cohort:
            floats = twin.num_floats_crossing(twin.state, client_id)
            clock = twin.find(SimulatedDevices).clock
            plan = clock.plan(clock.init(), {client_id: 1.0}, {client_id: floats}, seed=0, round=round)
            task = ClientTask(client_id, round, 0, Broadcast(model))
            (update,) = twin.engine.run([task])
            at_work.append((now + plan.schedule.seconds, client_id, round, update, plan.joules[client_id]))
        assert len(at_work) == len({entry[1] for entry in at_work}) == 4
        buffer = []
        while len(buffer) < 2:
            first = min(at_work, key=lambda entry: entry[:2])
            at_work.remove(first)
            buffer.append(first)
        now = buffer[-1][0]
        joules += sum(entry[4] for entry in buffer)
        late = [round - entry[2] for entry in buffer]
        staleness += late
        model = {
            name: tensor + 0.7 / 2 * sum(b[3].delta[name] / (1 + tau) ** exponent for b, tau in zip(buffer, late, strict=True))
            for name, tensor in model.items()
        }
        assert sorted(result.arrived) == sorted(entry[1] for entry in buffer)
        assert result.metrics["train/staleness"] == np.mean(late)
        assert result.metrics["sim/clock"] == pytest.approx(now, rel=1e-9)
        assert federation.state.slots["devices"]["joules"] == pytest.approx(joules)
        for name, tensor in federation.state.model.items():
            torch.testing.assert_close(tensor, model[name])
        flights = federation.state.slots["flights"]
        assert {order["round"] for order in flights["orders"]} == {entry[2] for entry in at_work}
        assert set(flights["models"]) == {str(entry[2]) for entry in at_work}, "no other model is kept"
    assert max(staleness) >= 2, "or the test shows nothing"


def test_a_stop_between_rounds_changes_nothing(make, tmp_path):
    whole, first, then = make(), make(), make()
    for _ in range(6):
        whole.run_round()
    for _ in range(3):
        first.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", first.state, {})
    then.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    for _ in range(3):
        then.run_round()
    assert same(then.state.model, whole.state.model)
    assert then.state.slots["devices"]["clock"] == whole.state.slots["devices"]["clock"]


def test_workers_do_the_same(make):
    own, other = make(), make(engine=WorkersEngine(device="cpu", workers=2))
    try:
        for _ in range(4):
            assert own.run_round().metrics == other.run_round().metrics
    finally:
        other.engine.close()
    assert same(own.state.model, other.state.model)


def test_clients_that_are_lost_leave_their_place(make):
    """By participation or by their hours; the others are as many as are free, and no round waits for ever."""
    for settings in (
        {"participation": Dropouts(away_probability=0.2, dropout_probability=0.4)},
        {"devices": DiurnalDevices(mean_seconds_per_sample=500, duty_cycle=0.4)},
    ):
        federation, arrived = make(**settings), 0
        for _ in range(12):
            result = federation.run_round()
            arrived += len(result.arrived)
            at_work = [order["client"] for order in federation.state.slots["flights"]["orders"]]
            assert len(at_work) <= 4
            assert not set(at_work) & set(result.arrived)
            assert result.metrics["sim/seconds"] > 0 or not result.arrived
        assert 0 < arrived <= 24


def test_asking_takes_time_before_anybody_is_sent_off(make):
    federation = make(
        selector=PowDSelector(local_loss=LocalLoss(), num_samples=NumSamples()), devices=UniformDevices(seconds_per_sample=1.0)
    )
    result = federation.run_round()
    assert result.metrics["sim/ask"] > 0
    arrivals = [order["arrives"] for order in federation.state.slots["flights"]["orders"]]
    assert min(arrivals) >= result.metrics["sim/clock"]
    assert result.metrics["sim/clock"] == pytest.approx(
        math.fsum(result.metrics[f"sim/{part}"] for part in ("ask", "download", "compute", "upload", "wait"))
    )


def test_what_waits_for_clients_is_refused():
    def check(devices, selector=None, capacity=None):
        parts = {"aggregator": FedBuff(), "selector": selector or UniformSelector(), "devices": devices, "capacity": capacity}
        check_pairs(parts, {"aggregator": "fedbuff", "selector": "X"})

    fine = UniformDevices()
    check(fine)
    with pytest.raises(ConfigError, match=r"'devices', which aggregator=fedbuff requires.*devices=lognormal"):
        check(None)
    for devices in (UniformDevices(deadline=5), UniformDevices(overcommit=1.5), MobileEdgeDevices(uplink="sequential")):
        with pytest.raises(ConfigError, match=r"fedbuff to go with devices=.*, but it takes .*devices\.uplink=parallel"):
            check(devices)
    for selector in (AllSelector(), RoundRobinSelector(), PoissonSelector()):
        with pytest.raises(
            ConfigError, match=r"^Expected selector=X to go with aggregator=fedbuff, but it .* choose .*uniform"
        ):
            check(fine, selector)
    with pytest.raises(ConfigError, match="takes updates as they come: choose capacity=whole"):
        check(fine, capacity=ProportionsCapacity())


def test_bad_settings_are_refused():
    for settings, named in (
        ({"concurrency": 0}, r"aggregator\.concurrency"),
        ({"staleness_exponent": -1}, "staleness_exponent"),
        ({"staleness_exponent": math.nan}, "staleness_exponent"),
        ({"server_lr": 0}, "server_lr"),
    ):
        with pytest.raises(ValueError, match=f"^Expected `{named}`"):
            FedBuff(**settings)
    with pytest.raises(ValueError, match=r"between federation\.cohort_size=5 and the 9 clients of the federation, but got 3"):
        FedBuff(concurrency=3).at_work(5, 9)
    with pytest.raises(ValueError, match="but got 10"):
        FedBuff(concurrency=10).at_work(5, 9)
    assert (FedBuff().at_work(4, 9), FedBuff().at_work(5, 9)) == (8, 9)
