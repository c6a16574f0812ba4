import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedfacet.callbacks.probabilities import Auc
from fedfacet.data.federated import FederatedData


def test_the_area_is_that_of_the_global_model(tiny_federation, tiny_clients):
    clients = tiny_clients()
    dataset = clients.dataset
    data = FederatedData(dataset, clients.partition, dataset.train[::3])
    federation = tiny_federation(clients=clients, rounds=3)
    callback = Auc(data=data, every_n_rounds=2)
    metrics = callback.measure(federation, 2)
    model = clients.objective.model
    model.load_state_dict(federation.state.model)
    for split, positions in data.splits.items():
        batch = dataset.batch(positions)
        with torch.inference_mode():
            logits = model.eval()(batch.x).double()
        assert metrics[f"{split}/auc"] == pytest.approx(roc_auc_score(batch.y, logits[:, 1] - logits[:, 0]), abs=1e-6)
    assert all(map(math.isnan, callback.measure(federation, 1).values()))
    assert callback.measure(federation, 3) == metrics
