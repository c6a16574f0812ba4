import json

import numpy as np

from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.counts import DisclosedInteractionMatrix, NumSamples
from fedfacet.types import Broadcast, ClientTask


def test_the_number_of_samples_costs_one_number(tiny_clients):
    matrices = ([[6, 2], [2, 6]], [[9, 7], [0, 0]], [[1, 0], [0, 0]])
    clients = tiny_clients(matrices=matrices)
    for client_id, matrix in enumerate(matrices):
        answer = answer_query(clients, NumSamples(), ClientTask(client_id, 1, 0, Broadcast({})))
        assert answer == (int(np.sum(matrix)), 1, 0)
        assert type(answer.value) is int
    assert not NumSamples.needs_model


def test_the_true_matrix_costs_its_entries(tiny_clients):
    matrices = ([[6, 2], [2, 6], [0, 1]], [[9, 7], [0, 0], [0, 0]], [[1, 0], [0, 0], [3, 0]])
    clients = tiny_clients(matrices=matrices)
    for client_id, matrix in enumerate(matrices):
        answer = answer_query(clients, DisclosedInteractionMatrix(), ClientTask(client_id, 1, 0, Broadcast({})))
        assert answer == (matrix, 6, 0)
        assert json.loads(json.dumps(answer.value)) == matrix, "plain whole numbers"
    assert not DisclosedInteractionMatrix.needs_model
