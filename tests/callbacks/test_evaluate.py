import math

import numpy as np
import pytest
import torch

from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.data.federated import FederatedData


@pytest.fixture
def clients(tiny_clients):
    return tiny_clients()


@pytest.fixture
def evaluate(clients):
    data = FederatedData(clients.dataset, clients.partition, clients.dataset.train[:10])
    return lambda **more: Evaluate(data=data, **more)


def test_metrics_are_those_of_the_model(tiny_federation, clients, evaluate):
    federation = tiny_federation(clients=clients)
    metrics = evaluate().measure(federation, 1)
    model = clients.objective.model
    model.load_state_dict(federation.state.model)
    for split, positions in (("val", clients.dataset.train[:10]), ("test", clients.dataset.test)):
        batch = clients.dataset.batch(positions)
        with torch.inference_mode():
            logits = model.eval()(batch.x)
        right = (logits.argmax(dim=1) == batch.y).numpy()
        group = (2 * batch.y + batch.a).numpy()
        accuracies = [right[group == g].mean() if (group == g).any() else math.nan for g in range(4)]
        assert metrics[f"{split}/acc"] == pytest.approx(right.mean())
        assert metrics[f"{split}/loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch.y)), rel=1e-6)
        assert metrics[f"{split}/acc_worst_group"] == pytest.approx(np.nanmin(accuracies))
        for g in range(4):
            assert metrics[f"{split}/acc_group/y{g // 2}_a{g % 2}"] == pytest.approx(accuracies[g], nan_ok=True)
    accuracies = [metrics[f"test/acc_group/y{g // 2}_a{g % 2}"] for g in range(4)]
    assert metrics["test/acc_adjusted"] == pytest.approx(np.average(accuracies, weights=evaluate().data.group_weights))


def test_in_between_there_is_nothing_but_the_names_stay(tiny_federation, evaluate):
    federation = tiny_federation(rounds=5)
    callback = evaluate(every_n_rounds=2)
    measured = {round: callback.measure(federation, round) for round in range(1, 6)}
    for round, metrics in measured.items():
        assert list(metrics) == list(measured[1])
        assert all(math.isnan(value) for value in metrics.values()) == (round in (1, 3))  # the last round is measured always


def test_measuring_changes_nothing(tiny_federation, evaluate):
    plain, measured = tiny_federation(), tiny_federation(callbacks={"evaluate": evaluate()})
    plain.fit()
    measured.fit()
    assert all(torch.equal(plain.state.model[name], measured.state.model[name]) for name in plain.state.model)


def test_rounds_between_measurements_are_checked(evaluate):
    with pytest.raises(ValueError, match="every_n_rounds"):
        evaluate(every_n_rounds=0)
