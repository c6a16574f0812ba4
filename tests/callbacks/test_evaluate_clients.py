import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.callbacks.evaluate_clients import EvaluateClients
from fedfacet.clients.personal_memory import own_model
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Broadcast

WEIGHTS = (22.0, 12.0, 16.0, 14.0)


@pytest.fixture
def clients(tiny_clients):
    """Four clients that keep the whole model."""
    clients = tiny_clients(lr=0.5)
    return replace(clients, personal=frozenset(clients.objective.model.state_dict()))


@pytest.fixture
def facts(clients):
    matrices = [clients.data(client_id).interaction_matrix for client_id in range(4)]
    splits = {"val": clients.dataset.train[::3], "test": clients.dataset.test}
    data = SimpleNamespace(matrices=matrices, held_out_clients=None)
    return {"splits": splits, "group_weights": WEIGHTS, "num_attributes": 2, "data": data}


def one_by_one(federation, facts, round):
    """Each client's metrics as the callback for a global model finds them, one after another."""
    measured = []
    own = [facts["data"].matrices[client_id].counts.ravel() for client_id in range(4)]
    shared = {name: facts[name] for name in ("splits", "num_attributes")}
    before = federation.state
    for client_id in range(4):
        federation.restore(replace(before, model=own_model(before.model, before.memory.get(client_id, {}))))
        measured.append(dict(Evaluate(group_weights=WEIGHTS, **shared).measure(federation, round)))
        adjusted = Evaluate(group_weights=own[client_id], **shared).measure(federation, round)
        measured[-1] |= {f"{split}/acc_own": adjusted[f"{split}/acc_adjusted"] for split in facts["splits"]}
    federation.restore(before)
    return measured


class OneEach(FedAvg):
    """Sends every client another head, as FedPAC does."""

    def broadcast(self, server, model, client_id):
        return Broadcast({name: tensor if client_id < 3 else -tensor for name, tensor in model.items()})


def test_a_model_that_the_server_keeps_for_a_client_is_that_clients(tiny_federation, tiny_clients):
    clients = tiny_clients()
    matrices = [clients.data(client_id).interaction_matrix for client_id in range(4)]
    data = SimpleNamespace(matrices=matrices, held_out_clients=None)
    splits = {"test": clients.dataset.test}
    callback = EvaluateClients(splits=splits, group_weights=WEIGHTS, num_attributes=2, data=data)
    federation = tiny_federation(clients=clients, aggregator=OneEach())
    metrics = callback.measure(federation, 1)
    sent = [federation.sent(federation.state, client_id).model for client_id in range(4)]
    losses = [federation.engine.evaluate(model, [splits["test"]])[0].loss for model in sent]
    assert len(set(losses)) == 2
    assert metrics["test/loss"] == pytest.approx(np.mean(losses))


def test_means_and_extremes_of_the_clients_models(tiny_federation, clients, facts):
    federation = tiny_federation(clients=clients, cohort_size=4, selector=UniformSelector())
    federation.run_round()
    federation.run_round()
    metrics = EvaluateClients(**facts).measure(federation, 2)
    measured = one_by_one(federation, facts, 2)
    assert len({repr(client) for client in measured}) > 1, "the clients have come to differ"
    for name in measured[0]:
        values = [client[name] for client in measured]
        assert metrics[name] == pytest.approx(np.mean(values), nan_ok=True)
        if name.split("/")[1] in ("acc", "acc_worst_group", "acc_own"):
            assert metrics[f"{name}_min"] == pytest.approx(min(values))
            assert metrics[f"{name}_max"] == pytest.approx(max(values))
    assert len(metrics) == len(measured[0]) + 2 * 3 * 2


def test_clients_that_have_not_trained_are_measured_with_the_global_model(tiny_federation, clients, facts):
    federation = tiny_federation(clients=clients, cohort_size=1, selector=RoundRobinSelector())
    federation.run_round()
    assert len(federation.state.memory) == 1
    metrics = EvaluateClients(**facts).measure(federation, 1)
    measured = one_by_one(federation, facts, 1)
    assert metrics["test/acc"] == pytest.approx(np.mean([client["test/acc"] for client in measured]))
    (trained,) = federation.state.memory
    losses = [client["test/loss"] for client in measured]
    assert losses.pop(trained) not in losses
    assert len(set(losses)) == 1


def test_where_nothing_is_personal_all_clients_are_the_global_model(tiny_federation, facts):
    federation = tiny_federation(cohort_size=4)
    federation.run_round()
    metrics = EvaluateClients(**facts).measure(federation, 1)
    plain = Evaluate(**{name: facts[name] for name in ("splits", "group_weights", "num_attributes")}).measure(federation, 1)
    assert {name: metrics[name] for name in plain} == pytest.approx(dict(plain))
    assert metrics["test/acc_min"] == metrics["test/acc_max"] == plain["test/acc"]


def test_a_group_that_nobody_can_be_measured_on_is_nan_and_makes_no_mean(tiny_federation, facts):
    """One client has samples of a group that is not in the split: its own accuracy is unknown, and so is their mean."""
    absent = np.array([index for index in facts["splits"]["test"] if index % 2 == 0])[:1]
    matrices = [InteractionMatrix([[1, 0], [0, 0]])] * 3 + [InteractionMatrix([[0, 0], [0, 9]])]
    data = SimpleNamespace(matrices=matrices, held_out_clients=None)
    callback = EvaluateClients(**facts | {"splits": {"test": absent}, "data": data})
    metrics = callback.measure(tiny_federation(), 1)
    assert math.isfinite(metrics["test/acc"])
    assert all(math.isnan(metrics[name]) for name in ("test/acc_own", "test/acc_own_min", "test/acc_own_max"))


def test_in_between_there_is_nothing_but_the_names_stay(tiny_federation, facts):
    federation = tiny_federation(rounds=3)
    callback = EvaluateClients(**facts, every_n_rounds=2)
    measured = [callback.measure(federation, round) for round in (1, 2, 3)]
    assert list(measured[0]) == list(measured[1]) == list(measured[2])
    assert all(math.isnan(value) for value in measured[0].values())
    assert math.isfinite(measured[1]["test/acc"])
    assert math.isfinite(measured[2]["test/acc"]), "the last round is measured always"


def test_measuring_changes_nothing(tiny_federation, facts):
    plain, measured = tiny_federation(), tiny_federation(callbacks={"evaluate": EvaluateClients(**facts)})
    plain.fit()
    measured.fit()
    assert all(torch.equal(plain.state.model[name], measured.state.model[name]) for name in plain.state.model)


def test_rounds_between_measurements_are_checked(facts):
    with pytest.raises(ValueError, match="every_n_rounds"):
        EvaluateClients(**facts, every_n_rounds=0)
