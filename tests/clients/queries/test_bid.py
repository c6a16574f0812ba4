import numpy as np
import pytest
from scipy.stats import kstest

from fedfacet import state
from fedfacet.clients.queries.base import answer_query
from fedfacet.errors import ConfigError
from fedfacet.methods.fmore import Auction, Bid, best_qualities
from fedfacet.types import Broadcast, ClientTask, RoundNeeds

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]])
AUCTION = Auction("additive", (9.0, 9.0, 9.0), 3, 1, (16.0, 8.0, 0.5))


def ask(clients, query, client_id, round=1, seed=0):
    weights = state.clone(clients.objective.model.state_dict())
    return answer_query(clients, query, ClientTask(client_id, round, seed, Broadcast(weights)))


@pytest.fixture
def clients(tiny_clients):
    clients = tiny_clients(matrices=MATRICES)
    clients.needs[:] = [RoundNeeds(1.0, 2.0, 2.0, 4.0), RoundNeeds(1.0, 2.0, 4.0, 4.0), RoundNeeds(1.0, 0.0, 0.0, 4.0)]
    return clients


def test_clients_offer_what_they_have_as_parts_of_the_largest(clients):
    """16, 4 and 6 samples; 8, 2 and any number a second; half, a quarter and any part of a model a second."""
    answers = [ask(clients, Bid().announced(AUCTION), k) for k in range(3)]
    assert [answer.value[:3] for answer in answers] == [[1.0, 1.0, 1.0], [0.25, 0.25, 0.5], [0.375, 1.0, 1.0]]
    assert {(answer.floats_up, answer.samples, len(answer.value)) for answer in answers} == {(4, 0, 4)}


def test_a_type_is_a_clients_own_for_the_whole_run_and_uniform(clients):
    """Where all win, the price is what the highest type would pay; what is not worth its cost shows the type."""
    query = Bid(lowest=1.0, highest=3.0).announced(Auction("additive", (9.0,) * 3, 10**9, 1, (16.0, 8.0, 0.5)))
    types = np.array([ask(clients, query, 0, seed=seed).value[3] / 3 for seed in range(300)])
    assert kstest(types, "uniform", args=(1, 2)).pvalue > 1e-3
    assert ask(clients, query, 0, round=9).value == ask(clients, query, 0).value
    assert best_qualities("additive", (9.0,) * 3, (1.0,) * 3, np.full(3, 3.0)).tolist() == [1.0] * 3


def test_a_bid_needs_an_auction_and_devices(clients, tiny_clients):
    with pytest.raises(RuntimeError, match=r"^Expected a bid in an auction, but none was announced"):
        ask(clients, Bid(), 0)
    with pytest.raises(ConfigError, match=r"^Expected clients with devices"):
        ask(tiny_clients(matrices=MATRICES), Bid().announced(AUCTION), 0)


@pytest.mark.parametrize(
    "wrong", [{"costs": [1, 1]}, {"costs": [1, 0, 1]}, {"lowest": -1.0}, {"lowest": 2.0}, {"highest": float("nan")}]
)
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"^Expected `(costs|lowest)`"):
        Bid(**wrong)
