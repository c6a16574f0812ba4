import math

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext, answer_query
from fedfacet.clients.queries.local_loss import LocalLoss, LossMoments
from fedfacet.types import Broadcast, ClientTask

MATRICES = ([[6, 2], [2, 6]], [[1, 0], [0, 0]], [[150, 40], [3, 7]])


@pytest.fixture(scope="module")
def clients(tiny_clients):
    return tiny_clients(matrices=MATRICES)


def ask(clients, query, client_id, weights=None):
    weights = state.clone(clients.objective.model.state_dict()) if weights is None else weights
    return answer_query(clients, query, ClientTask(client_id, 1, 0, Broadcast(weights)))


@pytest.mark.parametrize(("client_id", "number"), [(0, 16), (1, 1), (2, 200)])
def test_number_and_sum_are_those_of_the_mean_loss(clients, client_id, number):
    answer, loss = (ask(clients, query, client_id) for query in (LossMoments(), LocalLoss()))
    assert answer.value[:2] == [number, pytest.approx(number * loss.value)]
    assert answer.value[2] >= answer.value[1] ** 2 / number * (1 - 1e-12), "Jensen"
    assert (answer.floats_up, answer.samples) == (3, number)


def test_a_model_that_knows_nothing(clients):
    blank = {name: torch.zeros_like(tensor) for name, tensor in clients.objective.model.state_dict().items()}
    expected = [200, 200 * math.log(2), 200 * math.log(2) ** 2]
    assert ask(clients, LossMoments(), 2, blank).value == pytest.approx(expected)


def test_a_client_without_samples_has_no_losses(clients):
    empty = ClientData(clients.dataset, np.empty(0, np.int64), torch.device("cpu"))
    context = QueryContext(
        data=empty,
        model=clients.objective.model,
        make_optimizer=torch.optim.SGD,
        batch_size=8,
        seed=0,
        round=1,
        client_id=0,
    )
    assert LossMoments().answer(context).value == [0, 0, 0]
