from math import nan

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import state
from fedfacet.clients.prediction import head_gradients, network_with_head


@pytest.mark.parametrize("number", [40, 150])
def test_they_are_those_of_autograd(tiny_clients, number):
    """Of each class's own mean cross entropy; 150 samples are more than a batch."""
    clients = tiny_clients(matrices=[[[30, 30], [50, 50]]])
    samples = clients.dataset.train[-number:][::-1]
    weights = {name: 2 * tensor for name, tensor in clients.facts.model.items()}
    before = state.digest(weights)
    found = head_gradients(clients, weights, samples)
    network = clients.objective.model.double()
    network.load_state_dict(weights)
    expected = []
    for label in range(2):
        batch = clients.dataset.batch(samples[clients.dataset.y[samples] == label])
        loss = functional.cross_entropy(network(batch.x.double()), batch.y) if len(batch.y) else network.head.weight.sum() * nan
        (gradient,) = torch.autograd.grad(loss, network.head.weight)
        expected.append(float(gradient[label].square().sum()))
    assert found == pytest.approx(expected, rel=1e-4, nan_ok=True)
    assert found.shape == (2,)
    assert found.dtype == np.float64
    assert state.digest(weights) == before
    assert np.isnan(found).tolist() == [number == 40, False], "a class without samples is NaN, not 0"


def test_only_a_linear_head_on_features_will_do(tiny_clients):
    network = tiny_clients().objective.model
    assert network_with_head(network) is network
    assert network_with_head(tiny_clients().objective).head.out_features == 2
    assert network_with_head(nn.Sequential(nn.Linear(3, 2))) is None
