"""What every way of asking a client for its heterogeneity keeps to."""

import json

import pytest
import torch

from fedfacet import state
from fedfacet.clients.queries.base import answer_query
from fedfacet.types import Broadcast, ClientTask

MATRICES = (
    [[6, 2], [2, 6]],
    [[9, 7], [0, 0]],  # a single class
    [[5, 0], [6, 0]],  # a single attribute value
    [[1, 0], [0, 0]],  # a single sample
    [[0, 3], [1, 0]],
)


@pytest.fixture
def query(heterogeneity_option, make_part):
    return make_part("heterogeneity", heterogeneity_option)


@pytest.fixture(scope="module")
def clients(tiny_clients):
    return tiny_clients(matrices=MATRICES)


def ask(clients, query, client_id, *, round=1, seed=0):
    weights = state.clone(clients.objective.model.state_dict())
    return answer_query(clients, query, ClientTask(client_id, round, seed, Broadcast(weights)))


def test_the_answer_is_a_triplet_of_plain_numbers(clients, query):
    for client_id in range(len(MATRICES)):
        answer = ask(clients, query, client_id)
        assert json.loads(json.dumps(answer.value)) == answer.value
        assert len(answer.value) == 3
        assert all(type(measure) is float and 0 <= measure <= 1 for measure in answer.value)


def test_costs_are_counted(clients, query):
    for client_id in range(len(MATRICES)):
        answer = ask(clients, query, client_id)
        assert answer.floats_up == 3, "thesis, table 14"
        assert type(answer.samples) is int
        assert (answer.samples > 0) == query.needs_model


def test_all_of_them_answer_under_one_name(query):
    """A selector asks for the heterogeneity, whichever way it is found."""
    assert query.name == "heterogeneity"


def test_answers_depend_on_seed_round_and_client_alone(clients, query):
    first = [ask(clients, query, client_id) for client_id in range(len(MATRICES))]
    again = [ask(clients, query, client_id) for client_id in reversed(range(len(MATRICES)))][::-1]
    assert again == first


def test_the_broadcast_is_not_written_to(clients, query):
    weights = state.clone(clients.objective.model.state_dict())
    before = state.digest(weights)
    answer_query(clients, query, ClientTask(0, 1, 0, Broadcast(weights)))
    assert state.digest(weights) == before


def test_class_imbalance_is_known_to_the_client(clients, query):
    """Classes are labels; only attributes need estimating."""
    for client_id in range(len(MATRICES)):
        truth = clients.data(client_id).interaction_matrix.triplet.class_imbalance
        assert ask(clients, query, client_id).value[0] == pytest.approx(truth, abs=1e-12)


def test_more_than_two_classes(tiny_clients, query):
    clients = tiny_clients(matrices=([[4, 1], [1, 4], [3, 3], [0, 1]], [[0, 0], [5, 5], [0, 0], [2, 1]]))
    for client_id in range(2):
        answer = ask(clients, query, client_id)
        assert all(0 <= measure <= 1 for measure in answer.value)
    assert isinstance(clients.objective.model.head, torch.nn.Linear)
    assert clients.objective.model.head.out_features == 4, "the model that trains keeps its head"
