import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext, answer_query
from fedfacet.clients.queries.centroids import Centroids, cluster_centres
from fedfacet.errors import ConfigError
from fedfacet.types import Broadcast, ClientTask

MATRICES = ([[6, 2], [2, 6]], [[9, 7], [0, 0]], [[1, 0], [0, 0]])


@pytest.fixture(scope="module")
def clients(tiny_clients):
    return tiny_clients(matrices=MATRICES)


def ask(clients, query, client_id, round=1):
    weights = state.clone(clients.objective.model.state_dict())
    return answer_query(clients, query, ClientTask(client_id, round, 0, Broadcast(weights)))


def inputs(clients, client_id):
    return torch.cat([batch.x.flatten(1) for batch in clients.data(client_id).batches()]).double().numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dimension", [2, 3, 40])
def test_well_separated_gaussians_are_recovered_exactly(dimension, seed):
    """Every centre is the mean of the samples of one Gaussian, that of the most samples first."""
    generator = rng.stream(seed, "gaussians")
    means = 200 * generator.normal(size=(4, dimension))
    labels = np.repeat(np.arange(4), [9, 30, 5, 17])
    points = means[labels] + generator.normal(size=(61, dimension))
    order = generator.permutation(61)
    expected = [points[labels == cluster].mean(axis=0) for cluster in (1, 3, 0, 2)]
    assert cluster_centres(points[order], 4, seed) == pytest.approx(np.array(expected), rel=1e-9)


def test_the_mean_is_the_one_centre_of_one_cluster(clients):
    answer = ask(clients, Centroids(local_clusters=1), 0)
    assert np.array(answer.value) == pytest.approx(inputs(clients, 0).mean(axis=0)[None])


def test_what_it_costs_and_that_it_is_the_same_every_time(clients):
    answer = ask(clients, Centroids(), 0)
    assert np.shape(answer.value) == (2, 16)
    assert (answer.floats_up, answer.samples) == (32, 0)
    assert ask(clients, Centroids(), 0) == answer
    assert not Centroids().needs_model
    assert {type(number) for centre in answer.value for number in centre} == {float}


def test_a_client_of_one_sample_discloses_it(clients):
    answer = ask(clients, Centroids(), 2)
    assert np.array(answer.value) == pytest.approx(inputs(clients, 2))
    assert answer.floats_up == 16


def test_centres_are_those_of_a_partition_of_the_samples(clients):
    """Whose weighted mean is the samples' mean, as Lloyd's iterations have it."""
    points, centres = inputs(clients, 1), np.array(ask(clients, Centroids(local_clusters=3), 1).value)
    nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1)
    sizes = np.bincount(nearest, minlength=3)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert np.array([points[nearest == r].mean(axis=0) for r in range(3)]) == pytest.approx(centres)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=12), st.integers(1, 5))
@settings(max_examples=40)
def test_there_are_never_more_centres_than_different_points(points, number):
    points = np.array(points, dtype=float).reshape(-1, 2)
    centres = cluster_centres(points, number, 0)
    assert len(centres) == min(number, len(np.unique(points, axis=0)) if len(points) else 0)
    assert np.isfinite(centres).all()


def test_what_is_not_finite_has_no_centres():
    assert cluster_centres(np.array([[1.0, np.nan], [0.0, 1.0]]), 2, 0).tolist() == []


def context_of(clients, data, model=None):
    return QueryContext(
        data=data,
        model=model or clients.objective.model,
        make_optimizer=torch.optim.SGD,
        batch_size=8,
        seed=0,
        round=1,
        client_id=0,
    )


def test_a_client_without_samples_has_no_centres(clients):
    answer = Centroids().answer(context_of(clients, ClientData(clients.dataset, np.empty(0, np.int64), torch.device("cpu"))))
    assert answer.value == []
    assert answer.floats_up == 0


def test_features_are_those_of_the_model(clients):
    class Halves(nn.Module):
        def features(self, x):
            return x.flatten(1)[:, :8] / 2

    query = Centroids(local_clusters=1, space="features")
    assert query.needs_model
    answer = query.answer(context_of(clients, clients.data(0), Halves()))
    assert np.array(answer.value) == pytest.approx(inputs(clients, 0)[:, :8].mean(axis=0)[None] / 2)
    assert (answer.floats_up, answer.samples) == (8, 16)


def test_a_model_without_features_is_refused():
    with pytest.raises(ConfigError, match="whose centroids are asked for, but Linear lacks it: add it, or choose space=inputs"):
        Centroids(space="features").check(nn.Linear(2, 2))
    Centroids().check(nn.Linear(2, 2))


@pytest.mark.parametrize(("option", "value"), [("local_clusters", 0), ("local_clusters", 1.5), ("space", "pixels")])
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` to be .*, but got {value!r}"):
        Centroids(**{option: value})
