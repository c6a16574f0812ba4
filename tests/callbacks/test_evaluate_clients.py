import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.callbacks.evaluate_clients import EvaluateClients
from fedfacet.clients.personal_memory import own_model
from fedfacet.data.federated import FederatedData
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Broadcast, Partition


@pytest.fixture
def clients(tiny_clients):
    """Four clients that keep the whole model."""
    clients = tiny_clients(lr=0.5)
    return replace(clients, personal=frozenset(clients.objective.model.state_dict()))


@pytest.fixture
def data(clients):
    return FederatedData(clients.dataset, clients.partition, clients.dataset.train[::3])


def one_by_one(federation, data, round):
    """Each client's metrics as the callback for a global model finds them, one after another."""
    measured = []
    before = federation.state
    for client_id in range(4):
        federation.restore(replace(before, model=own_model(before.model, before.memory.get(client_id, {}))))
        alone = FederatedData(data.dataset, Partition((data.partition.indices[client_id],)), data.val)
        measured.append(dict(Evaluate(data=data).measure(federation, round)))
        adjusted = Evaluate(data=alone).measure(federation, round)
        measured[-1] |= {f"{split}/acc_own": adjusted[f"{split}/acc_adjusted"] for split in data.splits}
    federation.restore(before)
    return measured


class OneEach(FedAvg):
    """Sends every client another head, as FedPAC does."""

    def broadcast(self, server, model, client_id):
        return Broadcast({name: tensor if client_id < 3 else -tensor for name, tensor in model.items()})


def test_a_model_that_the_server_keeps_for_a_client_is_that_clients(tiny_federation, tiny_clients):
    clients = tiny_clients()
    callback = EvaluateClients(data=FederatedData(clients.dataset, clients.partition, clients.dataset.train[::3]))
    federation = tiny_federation(clients=clients, aggregator=OneEach())
    metrics = callback.measure(federation, 1)
    sent = [federation.sent(federation.state, client_id).model for client_id in range(4)]
    losses = [federation.engine.evaluate(model, [clients.dataset.test])[0].loss for model in sent]
    assert len(set(losses)) == 2
    assert metrics["test/loss"] == pytest.approx(np.mean(losses))


def test_means_and_extremes_of_the_clients_models(tiny_federation, clients, data):
    federation = tiny_federation(clients=clients, cohort_size=4, selector=UniformSelector())
    federation.run_round()
    federation.run_round()
    metrics = EvaluateClients(data=data).measure(federation, 2)
    measured = one_by_one(federation, data, 2)
    assert len({repr(client) for client in measured}) > 1, "the clients have come to differ"
    for name in measured[0]:
        values = [client[name] for client in measured]
        assert metrics[name] == pytest.approx(np.mean(values), nan_ok=True)
        if name.split("/")[1] in ("acc", "acc_worst_group", "acc_own"):
            assert metrics[f"{name}_min"] == pytest.approx(min(values))
            assert metrics[f"{name}_max"] == pytest.approx(max(values))
    assert len(metrics) == len(measured[0]) + 2 * 3 * 2


def test_clients_that_have_not_trained_are_measured_with_the_global_model(tiny_federation, clients, data):
    federation = tiny_federation(clients=clients, cohort_size=1, selector=RoundRobinSelector())
    federation.run_round()
    assert len(federation.state.memory) == 1
    metrics = EvaluateClients(data=data).measure(federation, 1)
    measured = one_by_one(federation, data, 1)
    assert metrics["test/acc"] == pytest.approx(np.mean([client["test/acc"] for client in measured]))
    (trained,) = federation.state.memory
    losses = [client["test/loss"] for client in measured]
    assert losses.pop(trained) not in losses
    assert len(set(losses)) == 1


def test_where_nothing_is_personal_all_clients_are_the_global_model(tiny_federation, data):
    federation = tiny_federation(cohort_size=4)
    federation.run_round()
    metrics = EvaluateClients(data=data).measure(federation, 1)
    plain = Evaluate(data=data).measure(federation, 1)
    assert {name: metrics[name] for name in plain} == pytest.approx(dict(plain))
    assert metrics["test/acc_min"] == metrics["test/acc_max"] == plain["test/acc"]


def test_a_group_that_nobody_can_be_measured_on_is_nan_and_makes_no_mean(tiny_federation, data):
    """One client has samples of a group that is not in the split: its own accuracy is unknown, and so is their mean."""
    dataset, groups = data.dataset, 2 * data.dataset.y + data.dataset.a
    here, elsewhere = (dataset.train[groups[dataset.train] == group] for group in (0, 3))
    dataset = replace(dataset, test=dataset.test[groups[dataset.test] == 0])
    callback = EvaluateClients(data=FederatedData(dataset, Partition((*here[:3, None], elsewhere)), data.val))
    metrics = callback.measure(tiny_federation(), 1)
    assert math.isfinite(metrics["test/acc"])
    assert all(math.isnan(metrics[name]) for name in ("test/acc_own", "test/acc_own_min", "test/acc_own_max"))


def test_in_between_there_is_nothing_but_the_names_stay(tiny_federation, data):
    federation = tiny_federation(rounds=3)
    callback = EvaluateClients(data=data, every_n_rounds=2)
    measured = [callback.measure(federation, round) for round in (1, 2, 3)]
    assert list(measured[0]) == list(measured[1]) == list(measured[2])
    assert all(math.isnan(value) for value in measured[0].values())
    assert math.isfinite(measured[1]["test/acc"])
    assert math.isfinite(measured[2]["test/acc"]), "the last round is measured always"


def test_measuring_changes_nothing(tiny_federation, data):
    plain, measured = tiny_federation(), tiny_federation(callbacks={"evaluate": EvaluateClients(data=data)})
    plain.fit()
    measured.fit()
    assert all(torch.equal(plain.state.model[name], measured.state.model[name]) for name in plain.state.model)


def test_rounds_between_measurements_are_checked(data):
    with pytest.raises(ValueError, match="every_n_rounds"):
        EvaluateClients(data=data, every_n_rounds=0)
