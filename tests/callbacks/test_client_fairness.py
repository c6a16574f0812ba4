import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.callbacks.evaluate_clients import ClientFairness, fairness_over_clients
from fedfacet.data.federated import FederatedData
from fedfacet.errors import FedFacetError


@pytest.fixture
def fairness(tiny_clients):
    """Return a function: what clients hold out -> a callback."""

    def make(held_out, **settings):
        clients = tiny_clients()
        return ClientFairness(
            data=FederatedData(clients.dataset, clients.partition, clients.dataset.test[:0], held_out), **settings
        )

    return make


def test_every_client_is_measured_on_what_it_holds_out(tiny_federation, tiny_clients, fairness):
    """By hand: the share of right predictions at each client's positions, from ``Engine.predict``'s labels."""
    clients = tiny_clients()
    held = [np.sort(indices[::2]) for indices in clients.partition.indices[:3]]
    callback = fairness((*held, np.empty(0, np.int64)))
    federation = tiny_federation(callbacks={"client_fairness": callback})
    result = federation.run_round()
    expected = []
    for positions in held:
        (counts,) = federation.engine.evaluate(federation.state.model, [positions])
        expected.append(sum(counts.correct) / len(positions))
    assert result.metrics["client_fairness/num_clients"] == 3
    assert result.metrics["client_fairness/acc_mean"] == pytest.approx(np.mean(expected))
    assert result.metrics["client_fairness/acc_std"] == pytest.approx(np.std(expected))
    assert result.metrics["client_fairness/acc_worst"] == min(expected)


def test_rounds_that_are_not_measured_have_the_same_names(tiny_federation, tiny_clients, fairness):
    held = tiny_clients().partition.indices
    federation = tiny_federation(callbacks={"f": fairness(held, every_n_rounds=2)}, rounds=3)
    first, second = federation.run_round().metrics, federation.run_round().metrics
    assert first.keys() == second.keys()
    assert np.isnan(first["client_fairness/acc_mean"])
    assert not np.isnan(second["client_fairness/acc_mean"])


def test_without_samples_held_out_it_is_refused(fairness):
    with pytest.raises(FedFacetError, match=r"set partition\.local_holdout=0\.2"):
        fairness([np.empty(0, np.int64)] * 3)


def test_ends_of_the_scale():
    alike = fairness_over_clients(np.full(7, 0.3))
    assert (alike["jain"], alike["acc_std"]) == (pytest.approx(1), pytest.approx(0))
    assert fairness_over_clients(np.array([0, 0, 0, 1.0]))["jain"] == pytest.approx(1 / 4)
    assert np.isnan(fairness_over_clients(np.zeros(4))["jain"])


def test_tenths_are_means_of_the_clients_at_the_ends():
    fairness = fairness_over_clients(np.arange(25)[::-1] / 100)
    assert fairness["acc_worst_tenth"] == pytest.approx((0 + 0.01 + 0.02) / 3)
    assert fairness["acc_best_tenth"] == pytest.approx((0.22 + 0.23 + 0.24) / 3)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30))
def test_jain_is_what_the_coefficient_of_variation_says(accuracies):
    """1 / (1 + (std / mean)^2), and the cosine is its root."""
    fairness = fairness_over_clients(np.array(accuracies))
    variation = np.std(accuracies) / np.mean(accuracies)
    assert fairness["jain"] == pytest.approx(1 / (1 + variation**2))
    assert fairness["cosine"] == pytest.approx(fairness["jain"] ** 0.5)
