"""Clients find together what varies between them within a class."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.queries.shared_heterogeneity import Discriminant, SharedHeterogeneity, fitted, own_shares
from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.deploy.questions import from_plain, to_plain
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import SelectionContext

MATRICES = [[[90, 10], [10, 90]]] * 6 + [[[90, 90], [10, 10]]] * 3 + [[[90, 10], [90, 10]]] * 3


class Inputs(nn.Module):
    """A model whose features are its inputs."""

    def features(self, x):
        return x.flatten(1)


def federation(matrices, *, apart, seed=0, width=6):
    """Return clients of normal samples whose classes differ along one axis and whose attribute values along another."""
    draw = np.random.default_rng(seed)
    y, a, owners = (
        np.array(one)
        for one in zip(
            *itertools.chain.from_iterable(
                [(own, value, client)] * matrices[client][own][value]
                for client, own, value in itertools.product(range(len(matrices)), range(2), range(2))
            ),
            strict=True,
        )
    )
    x = draw.normal(size=(len(y), width))
    x[:, 0] += 6 * y
    x[:, 1:3] += apart * a[:, None] / np.sqrt(2)
    dataset = dataset_from_arrays(torch.from_numpy(x.astype(np.float32)), y, a, test=0.1, seed=seed)
    return [ClientData(dataset, np.flatnonzero(owners == client), torch.device("cpu")) for client in range(len(matrices))]


class Server:
    """Asks clients, and remembers what they answered."""

    def __init__(self, clients):
        self.clients, self.disclosed = clients, {}

    def ask(self, query, client_ids):
        def answer(client_id):
            facts = {"make_optimizer": None, "batch_size": 8, "seed": 0, "round": 1, "client_id": client_id}
            return query.answer(QueryContext(data=self.clients[client_id], model=Inputs(), **facts)).value

        answers = {client_id: answer(client_id) for client_id in client_ids}
        self.disclosed[query.name] = self.disclosed.get(query.name, {}) | answers
        return answers

    def triplets(self, available):
        sizes = dict.fromkeys(("num_clients", "cohort_size", "num_slots"), len(self.clients))
        facts = {"round": 1, "available": available, "disclosed": self.disclosed, "rng": np.random.default_rng(0)}
        context = SelectionContext(**facts, ask=self.ask, **sizes)
        return context.ask_once(SharedHeterogeneity().learn(context), available)


def errors(clients, answers):
    truth = {k: client.interaction_matrix.triplet for k, client in enumerate(clients)}
    return [np.linalg.norm(np.subtract(answers[k], truth[k])) for k in answers]


def test_an_attribute_that_stands_out_is_found_to_the_sample():
    clients = federation(MATRICES, apart=9.0)
    assert max(errors(clients, Server(clients).triplets(range(12)))) < 0.02


def test_values_that_overlap_are_found_on_average_where_no_client_could_tell_them_apart():
    clients = federation(MATRICES, apart=3.0)
    assert np.mean(errors(clients, Server(clients).triplets(range(12)))) < 0.1


@pytest.mark.parametrize("matrices", [[[[50, 50], [50, 50]]] * 12, [[[90, 10], [10, 90]]] * 12])
def test_where_clients_are_alike_the_answer_is_neutral(matrices):
    """Nothing varies between clients, however far apart the values are, so nothing says that they are an attribute."""
    answers = Server(federation(matrices, apart=3.0)).triplets(range(12))
    assert all(answer[1:] == [0.0, 0.0] for answer in answers.values())


def test_a_client_that_comes_later_is_asked_for_its_triplet_alone():
    """It is neutral by features, as these are of another model by then."""
    clients = federation(MATRICES, apart=9.0)
    server = Server(clients)
    first = server.triplets(range(11))
    late = server.triplets(range(12))
    assert {k: late[k] for k in first} == first
    assert set(server.disclosed["feature_moments_features"]) == set(server.disclosed["projection_histograms"]) == set(range(11))
    assert late[11] == [0.0, 0.0, 0.0]


def test_the_direction_follows_from_sums_alone():
    """Fisher's quotient, by scipy, of covariances that are computed from all samples at once."""
    from scipy.linalg import eigh

    from fedfacet.clients.queries.shared_heterogeneity import FeatureMoments

    clients = federation(MATRICES, apart=4.0)
    found = Discriminant.of("features", Server(clients).ask(FeatureMoments(), range(12)).values())
    x = np.concatenate([client.dataset.inputs.fetch(client.indices).double().numpy() for client in clients])
    y = np.concatenate([client.y for client in clients])
    cells = np.concatenate([2 * k + client.y for k, client in enumerate(clients)])
    means = np.stack([x[cells == cell].mean(axis=0) for cell in cells])
    classes = np.stack([x[y == own].mean(axis=0) for own in y])
    within, between = (x - means).T @ (x - means) / (len(x) - 24), (means - classes).T @ (means - classes) / len(x)
    ridge = 1e-2 * np.diag(x.var(axis=0) + np.diag(within) - np.diag((x - means).T @ (x - means)) / len(x))
    values, vectors = eigh(between, within + ridge)
    between_ratio, within_ratio = 6 / 22, 6 / (len(x) - 24)
    edge = (1 + np.sqrt(between_ratio + within_ratio - between_ratio * within_ratio)) / (1 - within_ratio)
    assert found.strength == pytest.approx(values[-1] * len(x) / 22 / edge**2, rel=1e-6)
    cosine = found.direction @ vectors[:, -1] / np.linalg.norm(found.direction) / np.linalg.norm(vectors[:, -1])
    assert abs(cosine) == pytest.approx(1, abs=1e-8)


def test_components_are_those_of_scikit_learn_where_every_group_has_the_same_shares():
    from sklearn.mixture import GaussianMixture

    values = np.concatenate([np.random.default_rng(0).normal(0, 1, 3000), np.random.default_rng(1).normal(4, 0.5, 1000)])
    counts, edges = np.histogram(values, 400)
    ours = fitted(counts[None].astype(float), (edges[1:] + edges[:-1]) / 2)
    theirs = GaussianMixture(2, random_state=0, tol=1e-8, max_iter=1000).fit(values[:, None])
    order = theirs.means_.ravel().argsort()
    assert ours == pytest.approx([*theirs.means_.ravel()[order], *np.sqrt(theirs.covariances_.ravel()[order])], abs=0.02)


def test_a_site_is_sent_all_that_was_learnt():
    clients = federation(MATRICES[:4] + MATRICES[-2:], apart=9.0)
    server = Server(clients)
    sizes = dict.fromkeys(("num_clients", "cohort_size", "num_slots"), 6)
    context = SelectionContext(round=1, available=range(6), disclosed={}, rng=np.random.default_rng(0), ask=server.ask, **sizes)
    question = SharedHeterogeneity().learn(context)
    assert question.view == "features"
    assert vars(from_plain(to_plain(question))) == vars(question)
    assert question.floats_down == len(question.direction) + 8


def test_own_shares_of_a_client_without_one_component():
    assert own_shares(np.full(20, 5.0), [0.0, 5.0, 1.0, 1.0])[0] < 0.01
    assert InteractionMatrix([[20, 0], [20, 0]]).triplet.attribute_imbalance == 1


@pytest.mark.parametrize("width", [40, 300])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_many_features_of_few_samples(width, seed):
    """Chance alone makes clients differ along some of 40 directions in 240 samples; of 300 features moments would be vast."""
    clients = federation([[[5, 5], [5, 5]]] * 12, apart=0.0, seed=seed, width=width)
    server = Server(clients)
    answers = server.triplets(range(12))
    assert all(answers[k] == pytest.approx([0, 0, 0], abs=1e-9) for k in answers)
    assert np.shape(server.disclosed["feature_moments_features"][0]) == (3, min(width, 128), 1 + min(width, 128))
