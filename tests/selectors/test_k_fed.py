import itertools
from collections import Counter
from math import comb, nan

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.cluster import KMeans

from fedfacet import rng, state
from fedfacet.clients.queries.centroids import Centroids, cluster_centres
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.participation import Dropouts
from fedfacet.selectors.k_fed import KFedSelector, clusters_of_centres, taken_in_turn

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


def k_fed(**options):
    return KFedSelector(centroids=Centroids(), local_loss=LocalLoss(), **options)


@pytest.fixture
def asked(server):
    """Return a function: every client's centres, cohort size -> a server whose clients answer with these."""

    def make(centres, cohort_size, *, losses=None, seed=0, **options):
        answers = {"centroids": [np.asarray(rows).tolist() for rows in centres], "local_loss": losses}
        return server(k_fed(**options), len(centres), cohort_size, answers=answers, seed=seed)

    return make


def mixtures(seed, num_clients=20, number=5, dimension=6, local=2):
    """Return clients' centres, found by themselves, of samples of two of some Gaussians each; and their larger one."""
    generator = rng.stream(seed, "mixtures")
    means = 300 * generator.normal(size=(number, dimension))
    centres, main = [], []
    for k in range(num_clients):
        others = [c for c in range(number) if c != k % number]
        pair = [k % number, int(generator.choice(others))]
        sizes = [int(generator.integers(20, 40)), int(generator.integers(5, 15))]
        points = means[np.repeat(pair, sizes)] + generator.normal(size=(sum(sizes), dimension))
        centres.append(cluster_centres(points, local, seed))
        main.append(pair[0])
    return means, centres, np.array(main)


# Clusters


@pytest.mark.parametrize("seed", range(6))
def test_well_separated_gaussians_are_recovered_exactly(seed):
    """Centres share a cluster exactly where they are of one Gaussian, and a cluster's mean is near the Gaussian's."""
    means, centres, _ = mixtures(seed)
    rows = np.concatenate(centres)
    truth = np.linalg.norm(rows[:, None] - means, axis=2).argmin(axis=1)
    labels = clusters_of_centres(rows, len(means))
    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == len(means)
    found = np.array([rows[labels == label].mean(axis=0) for label in range(len(means))])
    assert np.linalg.norm(found[:, None] - means, axis=2).min(axis=0).max() < 2


@pytest.mark.parametrize("seed", range(3))
def test_where_each_client_has_several_clusters_it_is_the_released_code(seed):
    """``kfed``: M starts with all centres of the first client, the farthest centres join it, then Lloyd's iterations."""
    means, centres, _ = mixtures(seed)
    rows, chosen = np.concatenate(centres), list(range(len(centres[0])))
    while len(chosen) < len(means):
        distances = np.linalg.norm(rows[:, None] - rows[chosen], axis=2).min(axis=1)
        chosen.append(int(distances.argmax()))
    theirs = KMeans(len(means), init=rows[chosen], n_init=1).fit_predict(rows)
    ours = clusters_of_centres(rows, len(means))
    assert len(set(zip(theirs.tolist(), ours.tolist(), strict=True))) == len(means)


def test_clients_of_one_cluster_have_two_centres_in_it():
    """Which is why the seeds do not start with all centres of a client."""
    generator = rng.stream(0, "alone")
    means = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    rows = np.concatenate(
        [cluster_centres(mean + generator.normal(size=(30, 2)), 2, 0) for mean in np.repeat(means, 4, axis=0)]
    )
    labels = clusters_of_centres(rows, 3)
    assert all(len(set(block)) == 1 for block in labels.reshape(3, 8))
    assert len(set(labels)) == 3


def test_clusters_are_a_function_of_the_centres():
    rows = np.random.default_rng(0).normal(size=(50, 4))
    assert (clusters_of_centres(rows, 7) == clusters_of_centres(rows, 7)).all()
    assert len(set(clusters_of_centres(rows, 7))) == 7
    assert len(set(clusters_of_centres(np.repeat(rows[:3], 5, axis=0), 7))) == 3, "there are no more different centres"


# Cohorts


@pytest.mark.parametrize("seed", range(3))
def test_a_cohort_of_k_meets_every_cluster(asked, seed):
    _, centres, main = mixtures(seed)
    run = asked(centres, 5, seed=seed)
    for round in range(1, 40):
        assert sorted(main[list(run.round(round))]) == [0, 1, 2, 3, 4]


def test_larger_cohorts_take_one_of_each_before_the_next(asked):
    _, centres, main = mixtures(0)
    run = asked(centres, 13, num_clusters=5)
    for round in range(1, 20):
        cohort = main[list(run.round(round))]
        assert sorted(cohort[:5]) == sorted(cohort[5:10]) == [0, 1, 2, 3, 4]
        assert len(set(cohort[10:])) == 3


def test_small_cohorts_take_every_cluster_alike():
    clusters = np.array([0, 1, 2, 3, 4, 4, 4, 0, 1])
    draws = (taken_in_turn(clusters, np.zeros(9), 2, rng.stream(0, "test", draw)) for draw in range(2000))
    drawn = Counter(frozenset(clusters[picked].tolist()) for picked in draws)
    assert set(drawn) == set(map(frozenset, itertools.combinations(range(5), 2)))
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_within_a_cluster_clients_are_drawn_uniformly():
    clusters = np.array([0, 0, 0, 0, 1, 1])
    draws = (taken_in_turn(clusters, np.zeros(6), 2, rng.stream(0, "test", draw)) for draw in range(4000))
    drawn = Counter(frozenset(picked.tolist()) for picked in draws)
    assert set(drawn) == {frozenset((j, k)) for j in range(4) for k in (4, 5)}
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_within_a_cluster_the_highest_loss_may_go_first(asked):
    centres = [[[0.0], [9.0]]] * 4 + [[[9.0], [0.0]]] * 3
    run = asked(centres, 3, losses=[0.1, nan, 0.9, 0.4, nan, 0.2, nan], within="loss", num_clusters=2)
    for round in range(1, 30):
        cohort = run.round(round)
        assert sorted(cohort[:2]) == [2, 5]
        assert cohort[2] in (3, 4, 6)
    assert {set(run.select(round)) >= {2, 3, 5} for round in range(30, 60)} == {True, False}


# Clients that come and go, or have nothing to tell


def test_clients_that_come_later_are_asked_then(asked):
    _, centres, main = mixtures(1)
    run = asked(centres, 5)
    run.round(1, available=[0, 1, 2, 3, 4, 5, 6])
    assert sorted(main[list(run.round(2))]) == [0, 1, 2, 3, 4]
    assert run.asked == [(1, list(range(7))), (2, list(range(7, 20)))]
    assert set(main[list(run.round(3, available=[0, 5, 10, 1, 3]))]) == {0, 1, 3}


def test_clients_without_centres_join_where_others_lack(asked):
    run = asked([[], [[1.0]], [], [[5.0]], [[5.1]]], 3, num_clusters=2)
    for round in range(1, 20):
        assert set(run.round(round)) == {1, 3, 4}
        assert {1, 3} < set(run.round(round, available=[0, 1, 2, 3]))


def test_centres_are_asked_once(asked):
    run = asked([[[0.0, 0.0], [9.0, 9.0]]] * 4, 2)
    for round in range(1, 4):
        run.round(round)
    assert run.asked == [(1, [0, 1, 2, 3])]


def test_where_nobody_has_centres_it_is_uniform(asked):
    run = asked([[]] * 5, 2)
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 2001))
    assert len(drawn) == comb(5, 2)
    assert chisquare(list(drawn.values())).pvalue > 1e-4


@pytest.mark.parametrize(("centres", "unusable"), [([[[1.0]], [[1.0, 2.0]], [[2.0]]], 1), ([[[1.0] * 3], [[2.0]], [[3.0]]], 0)])
def test_a_client_whose_centres_have_another_length_comes_last_and_is_named(asked, centres, unusable, caplog):
    cohort = asked(centres, 2).round(1)
    assert unusable not in cohort
    assert f"1 of 3 clients have another length than most, and they come last: clients {unusable}." in caplog.text


# In a federation


def test_it_runs_and_resumes_bit_for_bit(tiny_federation):
    def federation():
        participation = Dropouts(dropout_probability=0.3)
        return tiny_federation(selector=k_fed(), matrices=MATRICES, cohort_size=3, rounds=5, participation=participation)

    whole = federation()
    results = [whole.run_round() for _ in range(5)]
    assert [result.ledger.query_floats_up for result in results] == [5 * 2 * 16, 0, 0, 0, 0]
    assert sum(result.ledger.query_samples + result.ledger.query_floats_down for result in results) == 0
    first, second = federation(), federation()
    for _ in range(2):
        first.run_round()
    second.restore(first.state)
    assert [second.run_round().cohort for _ in range(3)] == [result.cohort for result in results[2:]]
    assert state.digest(second.state.model) == state.digest(whole.state.model)


@pytest.mark.parametrize(("option", "value"), [("num_clusters", 0), ("num_clusters", 2.5), ("within", "size")])
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` to be .*, but got {value!r}"):
        k_fed(**{option: value})
