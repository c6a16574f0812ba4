import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import nn

from fedfacet import state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext, answer_query
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.types import Broadcast, ClientTask

MATRICES = ([[6, 2], [2, 6]], [[9, 7], [0, 0]], [[1, 0], [0, 0]], [[150, 40], [3, 7]])


@pytest.fixture(scope="module")
def clients(tiny_clients):
    return tiny_clients(matrices=MATRICES)


def ask(clients, client_id, weights=None, query=None):
    weights = state.clone(clients.objective.model.state_dict()) if weights is None else weights
    return answer_query(clients, query or LocalLoss(), ClientTask(client_id, 1, 0, Broadcast(weights)))


def test_it_is_the_mean_cross_entropy_of_all_samples(clients):
    """Against scipy's log-softmax of the logits of each sample on its own."""
    for client_id, matrix in enumerate(MATRICES):
        answer = ask(clients, client_id)
        data = clients.data(client_id)
        with torch.no_grad():
            logits = [clients.objective.model.eval()(data.batch(np.array([i])).x)[0].numpy() for i in range(len(data))]
        expected = -log_softmax(np.array(logits, dtype=np.float64), axis=1)[np.arange(len(data)), data.y].mean()
        assert type(answer.value) is float
        assert answer.value == pytest.approx(expected, rel=1e-6)
        assert (answer.floats_up, answer.samples) == (1, np.sum(matrix))


def test_a_model_that_knows_nothing_loses_log_of_the_number_of_classes(clients):
    blank = {name: torch.zeros_like(tensor) for name, tensor in clients.objective.model.state_dict().items()}
    assert ask(clients, 0, blank).value == pytest.approx(math.log(2))


def test_dropout_and_batch_statistics_have_no_part_in_it(tiny_clients):
    """Eval mode: asked twice it says the same, whatever the client trained on in between."""

    def model(num_classes, shape):
        flat = math.prod(shape)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(flat), nn.Dropout(0.5), nn.Linear(flat, num_classes))

    clients = tiny_clients(model=model)
    weights = state.clone(clients.objective.model.state_dict())
    before = state.digest(weights)
    first = ask(clients, 0, weights)
    clients.train(ClientTask(0, 1, 0, Broadcast(weights)))
    assert ask(clients, 0, weights) == first
    assert state.digest(weights) == before, "the broadcast is not written to"


def test_a_diverged_model_answers_nan(clients):
    broken = {name: torch.full_like(tensor, math.nan) for name, tensor in clients.objective.model.state_dict().items()}
    assert math.isnan(ask(clients, 1, broken).value)


def test_a_client_without_samples_has_no_loss(clients):
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
    answer = LocalLoss().answer(context)
    assert math.isnan(answer.value)
    assert answer.samples == 0
