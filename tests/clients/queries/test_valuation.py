import math

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext, answer_query
from fedfacet.clients.queries.local_loss import LocalLoss, Valuation
from fedfacet.types import Broadcast, ClientTask

MATRICES = ([[6, 2], [2, 6]], [[9, 7], [0, 0]], [[1, 0], [0, 0]], [[150, 40], [3, 7]])


@pytest.fixture(scope="module")
def clients(tiny_clients):
    return tiny_clients(matrices=MATRICES)


def ask(clients, query, client_id, weights=None):
    weights = state.clone(clients.objective.model.state_dict()) if weights is None else weights
    return answer_query(clients, query, ClientTask(client_id, 1, 0, Broadcast(weights)))


@pytest.mark.parametrize(("client_id", "number"), [(0, 16), (1, 16), (2, 1), (3, 200)])
def test_it_is_the_mean_loss_times_the_root_of_the_number(clients, client_id, number):
    answer, loss = (ask(clients, query, client_id) for query in (Valuation(), LocalLoss()))
    assert type(answer.value) is float
    assert answer.value == pytest.approx(math.sqrt(number) * loss.value)
    assert (answer.floats_up, answer.samples) == (1, number)


def test_a_model_that_knows_nothing(clients):
    blank = {name: torch.zeros_like(tensor) for name, tensor in clients.objective.model.state_dict().items()}
    assert ask(clients, Valuation(), 3, blank).value == pytest.approx(math.sqrt(200) * math.log(2))


def test_a_client_without_samples_has_no_valuation(clients):
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
    assert math.isnan(Valuation().answer(context).value)
