import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet.clients.queries.base import answer_query
from fedfacet.methods.lag import Smoothness
from fedfacet.types import Broadcast, ClientTask


class Linear(nn.Linear):
    """Logistic regression on pixels."""

    def __init__(self, num_classes, input_shape):
        super().__init__(math.prod(input_shape), num_classes)

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("client_id", [0, 2])
def test_it_is_the_largest_eigenvalue_of_the_hessian(client_id, decay, tiny_clients):
    """Of the whole matrix, written out by torch."""
    clients = tiny_clients(model=Linear)
    object.__setattr__(clients, "optimizer", partial(torch.optim.SGD, lr=0.1, weight_decay=decay))
    weights = {name: tensor.clone() for name, tensor in clients.objective.model.state_dict().items()}
    task = ClientTask(client_id, 1, 0, Broadcast(weights))
    answer = answer_query(clients, Smoothness(iterations=100), task)
    (batch,) = clients.data(client_id).batches()

    def loss(flat):
        weight, bias = flat[:-2].view(2, -1), flat[-2:]
        return functional.cross_entropy(batch.x.flatten(1) @ weight.T + bias, batch.y) + decay / 2 * flat.square().sum()

    flat = torch.cat([weights["weight"].flatten(), weights["bias"]])
    largest = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat)).abs().max().item()
    assert answer.value == pytest.approx(largest, rel=1e-3)
    assert (answer.floats_up, answer.samples) == (1, 100 * 16)
    assert answer_query(clients, Smoothness(iterations=100), task) == answer, "drawn by the client's own stream"
    assert answer_query(clients, Smoothness(iterations=1), task).value <= largest * (1 + 1e-6)


def test_a_model_that_is_not_finite_says_nan(tiny_clients):
    clients = tiny_clients(model=Linear)
    weights = {name: torch.full_like(tensor, math.nan) for name, tensor in clients.objective.model.state_dict().items()}
    assert math.isnan(answer_query(clients, Smoothness(), ClientTask(0, 1, 0, Broadcast(weights))).value)


def test_a_loss_that_is_flat_says_0(tiny_clients):
    """One class with certainty: the curvature underflows, and the iteration stops."""
    clients = tiny_clients(model=Linear, matrices=[[[0, 0], [4, 4]]])
    weights = {"weight": torch.zeros(2, 16), "bias": torch.tensor([-200.0, 200.0])}
    assert answer_query(clients, Smoothness(), ClientTask(0, 1, 0, Broadcast(weights))).value == 0
