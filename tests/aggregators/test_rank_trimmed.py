from math import nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.rank_trimmed import RankTrimmed, rank_weights
from fedfacet.build import build
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.selectors.all import AllSelector
from fedfacet.types import ClientUpdate

MODEL = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64), "running": torch.tensor([4.0], dtype=torch.float64)}


def update(client, delta, right, num_samples=10):
    judged = np.array([[[right, 50 - right]], [[0, 50]]])
    change = {"w": torch.tensor(delta, dtype=torch.float64)}
    buffers = {"running": torch.tensor([float(client)], dtype=torch.float64)}
    return ClientUpdate(client, change, buffers, num_samples, 1, 1.0, {}, judged=(judged, judged))


# Weights


def test_ten_clients_of_whom_two_are_outliers():
    """c is .8, b is .16."""
    accuracies = [0.90, 0.89, 0.88, 0.87, 0.86, 0.85, 0.84, 0.83, 0.30, 0.20]
    assert rank_weights(accuracies) == pytest.approx([0.25, 0.1875, *[0.09375] * 6, 0, 0])


def test_ten_clients_of_whom_all_count():
    """Where nobody is far below the best; a share below 1 always leaves the last out, so it is nearly 1 here."""
    accuracies = np.linspace(0.9, 0.8, 10)
    weights = rank_weights(accuracies, outlier_share=0.999999)
    assert weights[-1] == 0
    by_rank = rank_weights([*accuracies, 0.0][:10], outlier_share=0.999999)
    assert by_rank == pytest.approx(weights)
    assert rank_weights([0.7] * 10) == pytest.approx([0.1] * 10)


def test_equal_accuracies_share_the_weights_of_their_ranks():
    """Of five, one is an outlier: c .8, b .16. The two best have Q(.4), the others what is left."""
    shared = (0.4 + 0.6 * (0.4 - 0.16) / 0.64) / 2
    assert rank_weights([0.9, 0.5, 0.9, 0.5, 0.0]) == pytest.approx([shared, (1 - 2 * shared) / 2] * 2 + [0])


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.randoms(use_true_random=False), st.data())
def test_properties(hits, shuffle, data):
    settings = {
        "outlier_share": data.draw(st.floats(0.05, 0.95)),
        "best_share": data.draw(st.floats(0.05, 0.95)),
        "best_weight": data.draw(st.floats(0.0, 1.0)),
    }
    if settings["best_weight"] < settings["best_share"]:
        settings["best_weight"] = settings["best_share"]  # or the best would weigh less than others
    accuracies = np.array(hits) / 100
    weights = rank_weights(accuracies, **settings)
    assert weights.sum() == pytest.approx(1)
    gaps = accuracies.max() - accuracies
    assert ((weights == 0) | (gaps <= settings["outlier_share"] * gaps.max())).all(), "an outlier has no weight"
    assert (np.diff(weights[np.argsort(accuracies, kind="stable")]) >= -1e-9).all(), "who is more accurate weighs no less"
    order = list(range(len(hits)))
    shuffle.shuffle(order)
    assert rank_weights(accuracies[order], **settings) == pytest.approx(weights[order]), "whatever the order"
    if len(set(hits)) == 1:
        assert weights == pytest.approx(1 / len(hits))


# Models


def test_a_round_by_hand():
    updates = [update(0, [1.0, 0.0], 25), update(1, [0.0, 4.0], 45), update(2, [9.0, 9.0], 5), update(3, [2.0, 2.0], 40)]
    _, model = RankTrimmed().aggregate({}, MODEL, iter(updates))
    weights = rank_weights([0.75, 0.95, 0.55, 0.90])
    assert weights == pytest.approx([0.25, 0.5, 0, 0.25])
    np.testing.assert_allclose(model["w"] - MODEL["w"], [0.25 * 1 + 0.25 * 2, 0.5 * 4 + 0.25 * 2])
    np.testing.assert_allclose(model["running"], 4 + 0.5 * 1 + 0.25 * 3)
    _, kept = RankTrimmed(buffers="keep").aggregate({}, MODEL, iter(updates))
    assert kept["running"] == MODEL["running"]
    assert torch.equal(kept["w"], model["w"])


def test_the_order_of_updates_does_not_matter():
    updates = [update(k, [float(k), 1.0 - k], 10 + 3 * (k % 4)) for k in range(7)]
    orders = (updates, updates[::-1], updates[3:] + updates[:3])
    models = [RankTrimmed().aggregate({}, MODEL, iter(order))[1] for order in orders]
    for model in models[1:]:
        assert all(torch.allclose(model[name], models[0][name]) for name in MODEL)


def test_samples_may_weigh_too():
    updates = [update(0, [1.0, 0.0], 25, num_samples=30), update(1, [0.0, 1.0], 25), update(2, [5.0, 5.0], 0)]
    _, model = RankTrimmed(weighting="samples").aggregate({}, MODEL, iter(updates))
    np.testing.assert_allclose(model["w"] - MODEL["w"], [0.75, 0.25])


# In a federation


def test_clients_with_wrong_labels_are_left_out(tiny_clients, tiny_federation):
    """Half of the clients are so, which an average is not proof against."""

    def run(aggregator):
        clients = tiny_clients(matrices=[[[16, 16], [16, 16]]] * 6)
        for client_id in (0, 2, 5):
            rows = clients.partition.indices[client_id]
            clients.dataset.y[rows] = 1 - clients.dataset.y[rows]
        federation = tiny_federation(aggregator=aggregator, selector=AllSelector(), clients=clients, cohort_size=6, rounds=8)
        federation.fit()
        samples = federation.find(ServerEvaluation).server_data.samples
        return federation.engine.evaluate(federation.state.model, [samples])[0].average_accuracy

    accuracies = run(RankTrimmed(outlier_share=0.5)), run(FedAvg())
    assert accuracies[0] > 0.85 > 0.75 > accuracies[1], accuracies


def test_it_needs_samples_of_the_servers(job_of, tmp_path):
    job = job_of("experiment=digits_gsc", "selector=uniform", "aggregator=rank_trimmed", "callbacks=[]", "logger=[]")
    with pytest.raises(
        ConfigError, match="aggregator=rank_trimmed, but the server has no samples: choose server_data=validation"
    ):
        build(job, tmp_path)


def test_it_goes_on_bit_for_bit(tiny_federation):
    whole, first, second = (tiny_federation(aggregator=RankTrimmed(), rounds=5, cohort_size=3) for _ in range(3))
    whole.fit()
    for _ in range(2):
        first.run_round()
    second.restore(first.state)
    second.fit()
    assert state.digest(second.state.model) == state.digest(whole.state.model)
    assert state.digest(tiny_federation(rounds=5, cohort_size=3).fit().model) != state.digest(whole.state.model)


@pytest.mark.parametrize(
    ("option", "value"), [("outlier_share", 1.0), ("outlier_share", 0.0), ("best_share", nan), ("best_weight", 1.1)]
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` in .*, but got {value}"):
        RankTrimmed(**{option: value})
