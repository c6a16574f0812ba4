"""SCAFFOLD on parabolas, against the paper's algorithm written down once more in numpy."""

import contextlib
from functools import partial

import numpy as np
import pytest
import torch

from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.errors import ConfigError
from fedfacet.methods.scaffold import CONTROL, Scaffold, ScaffoldCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Dropouts, Stragglers
from fedfacet.schedulers import StepScheduler
from fedfacet.selectors.uniform import UniformSelector


@pytest.fixture
def scaffold(parabolas):
    def make(server_lr=1.0, **settings):
        return parabolas.federate(correction=ScaffoldCorrection(), aggregator=Scaffold(server_lr=server_lr), **settings)

    return make


def control(federation):
    return federation.state.aggregator["control"]["point"].numpy()


def controls(federation):
    """Return every client's control variate, zero for those that have none yet."""
    kept = [federation.state.memory.get(client_id, {}) for client_id in range(4)]
    return np.array([memory[f"{CONTROL}/point"].numpy() if memory else np.zeros(16) for memory in kept])


def test_with_everybody_and_one_step_it_is_gradient_descent(scaffold, parabolas):
    federation = scaffold(steps=1)
    w = parabolas.point(federation)
    for _ in range(6):
        federation.run_round()
        w = w - 0.1 * np.mean([parabolas.gradient(client_id, w) for client_id in range(4)], axis=0)
        assert parabolas.point(federation) == pytest.approx(w, abs=1e-12)


def test_it_reaches_the_joint_optimum_where_fedavg_does_not(scaffold, parabolas, settled_fedavg):
    ours, fedavg = scaffold(steps=5), parabolas.federate(steps=5, aggregator=FedAvg())
    for _ in range(25):
        ours.run_round()
        fedavg.run_round()
    assert parabolas.point(ours) == pytest.approx(parabolas.optimum, abs=1e-6)
    assert controls(ours) == pytest.approx(np.array([parabolas.gradient(k, parabolas.optimum) for k in range(4)]), abs=1e-5)
    assert parabolas.point(fedavg) == pytest.approx(settled_fedavg(0.1, 5), abs=1e-6)
    assert np.abs(settled_fedavg(0.1, 5) - parabolas.optimum).max() > 0.1


def test_it_does_so_with_two_clients_of_four_in_a_round(scaffold, parabolas):
    federation = scaffold(steps=5, selector=UniformSelector())
    for _ in range(60):
        federation.run_round()
    assert parabolas.point(federation) == pytest.approx(parabolas.optimum, abs=1e-6)


PARTICIPATION = {
    "everybody": {},
    "two of four": {"selector": UniformSelector()},
    "dropouts": {"participation": Dropouts(away_probability=0.3, dropout_probability=0.3)},
    "stragglers": {"participation": Stragglers(straggler_probability=0.8), "selector": UniformSelector()},
}


@pytest.mark.parametrize("who", PARTICIPATION)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1.0), (0.9, 1.0), (0.0, 0.5), (0.5, 0.8)])
def test_it_is_the_papers_algorithm(who, momentum, decay, scaffold, parabolas):
    """Option II, for whatever steps, learning rate and momentum the clients have in a round.

    A client's new c_k is the mean of the gradients that it met, each weighted by how far its momentum carried it.
    """
    scheduler = StepScheduler(every_n_rounds=2, decay=decay)
    federation = scaffold(server_lr=0.7, steps=6, lr=0.05, momentum=momentum, scheduler=scheduler, **PARTICIPATION[who])
    w, c, c_K = parabolas.point(federation), np.zeros(16), np.zeros((4, 16))
    seen = set()
    for round in range(7):
        before = federation.state.memory
        result = federation.run_round()
        lr = 0.05 * decay ** (round // 2)
        ends, changes = [], []
        for receipt in result.receipts:
            k, steps = receipt.client_id, receipt.num_steps
            drift = c - c_K[k]
            end, met = parabolas.descend(
                lambda at, k=k, drift=drift: parabolas.gradient(k, at) + drift, w, lr=lr, momentum=momentum, steps=steps
            )
            carried = np.array([sum(momentum**later for later in range(steps - step)) for step in range(steps)])
            new = carried @ (met - drift) / carried.sum()
            ends.append(end)
            changes.append(new - c_K[k])
            c_K[k] = new
            seen.add(steps)
        if ends:
            w = w + 0.7 * (np.mean(ends, axis=0) - w)
            c = c + np.sum(changes, axis=0) / 4
        assert parabolas.point(federation) == pytest.approx(w, abs=1e-10)
        assert control(federation) == pytest.approx(c, abs=1e-9)
        assert controls(federation) == pytest.approx(c_K, abs=1e-9)
        assert control(federation) == pytest.approx(controls(federation).mean(axis=0), abs=1e-12)
        for client_id in before.keys() - set(result.arrived):
            assert federation.state.memory[client_id] is before[client_id], "who is not heard of keeps its control variate"
    assert (len(seen) > 1) is (who == "stragglers")
    assert (federation.state.participation_counts.sum().item() == 28) is (who == "everybody")


@pytest.mark.parametrize(
    ("optimizer", "fits"),
    [
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), True),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), False),
        (partial(torch.optim.Adam, lr=0.1), False),
    ],
)
def test_optimizers_whose_updates_are_no_sum_of_gradients_are_refused(optimizer, fits):
    """A client's control variate is the mean gradient, which the update of others does not tell."""
    data = deal(dataset_from_arrays(np.eye(20, 4), np.arange(20) % 2), IIDPartitioner(num_clients=2))
    model = ClassificationObjective(torch.nn.Linear(4, 2), optimizer=optimizer, correction=ScaffoldCorrection())
    with contextlib.nullcontext() if fits else pytest.raises(ConfigError, match="choose optimizer=sgd"):
        federate(data, model, aggregator=Scaffold(), callbacks={}).run_round()
