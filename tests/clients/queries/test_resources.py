import numpy as np
import pytest

from fedfacet import state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.resources import Resources, RoundJoules, UploadSeconds
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError
from fedfacet.types import Broadcast, ClientTask, RoundNeeds

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]])


def ask(clients, query, client_id, round=1, seed=0):
    weights = state.clone(clients.objective.model.state_dict())
    return answer_query(clients, query, ClientTask(client_id, round, seed, Broadcast(weights)))


@pytest.fixture
def clients(tiny_clients):
    clients = tiny_clients(matrices=MATRICES)
    clients.needs[:] = [RoundNeeds(1.0 + k, 2.0 + k, 3.0 + k, 4.0 + k) for k in range(3)]
    return clients


def test_clients_tell_what_a_round_takes_them(clients):
    answers = [ask(clients, query, 1) for query in (Resources(), RoundJoules(), UploadSeconds())]
    assert [answer.value for answer in answers] == [[2.0, 3.0, 4.0], 5.0, 4.0]
    assert [(answer.floats_up, answer.samples) for answer in answers] == [(3, 0), (1, 0), (1, 0)]


def test_noise_is_drawn_anew_in_every_round_and_for_every_client(clients):
    seconds = np.array([ask(clients, Resources(noise=0.5), 0, round).value for round in range(1, 1001)])
    assert len(np.unique(seconds)) == 3000
    logs = np.log(seconds / [1.0, 2.0, 3.0])
    assert logs.mean(axis=0) == pytest.approx(0, abs=0.07)
    assert logs.std(axis=0) == pytest.approx(0.5, abs=0.05)
    assert ask(clients, Resources(noise=0.5), 0, 7).value == seconds[6].tolist()


def test_clients_without_devices_cannot_tell(tiny_clients):
    with pytest.raises(ConfigError, match=r"^Expected clients with devices, but they have none: choose devices="):
        ask(tiny_clients(matrices=MATRICES), Resources(), 0)


def test_in_a_federation_it_is_what_the_clock_takes(tiny_federation):
    """A model of n floats, both ways; the seconds of training are those of the samples of all epochs."""
    devices = UniformDevices(seconds_per_sample=0.5, down_mbps=0.02, up_mbps=0.01, joules_per_sample=2.0, joules_per_byte=0.25)
    federation = tiny_federation(matrices=MATRICES, devices=devices, local=LocalTraining(amount=3, batch_size=8))
    size = 4 * state.num_floats(federation.facts.model)
    expected = [size / 2500, 3 * 16 * 0.5, size / 1250]
    assert ask(federation.engine.clients, Resources(), 0).value == pytest.approx(expected)
    assert ask(federation.engine.clients, RoundJoules(), 0).value == pytest.approx(3 * 16 * 2.0 + 2 * size * 0.25)


def test_clients_in_other_processes_have_devices_too(tiny_federation):
    devices = UniformDevices()
    one = tiny_federation(matrices=MATRICES, devices=devices, engine=SequentialEngine(device="cpu"))
    engine = WorkersEngine(workers=2, device="cpu")
    two = tiny_federation(matrices=MATRICES, devices=devices, engine=engine)
    tasks = [one.order(one.state, k) for k in range(3)]
    try:
        assert list(two.engine.ask(Resources(noise=0.1), tasks)) == list(one.engine.ask(Resources(noise=0.1), tasks))
    finally:
        engine.close()


@pytest.mark.parametrize("noise", [-0.1, 2.5, float("nan")])
def test_impossible_noise_is_refused(noise):
    with pytest.raises(ValueError, match=r"^Expected `noise` in \[0, 2\], but got"):
        Resources(noise=noise)
