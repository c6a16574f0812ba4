import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.errors import InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.partitioners.synthetic import DirichletPartitioner


def labels(num_samples=1000, num_classes=2):
    return np.sort(np.arange(num_samples) % num_classes), np.zeros(num_samples, dtype=np.int64)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 10.0])
def test_shares_have_the_moments_of_the_dirichlet_distribution(alpha):
    """A share of Dir(alpha 1_K) has mean 1/K and variance (1/K)(1 - 1/K) / (K alpha + 1).

    Both are estimated from 400 independent draws (one per seed, of one class); the cuts round each share by at most 1/2000.
    """
    K, draws, n = 5, 400, 2000
    y, a = labels(n, 1)
    shares = np.array(
        [
            [len(client) / n for client in DirichletPartitioner(num_clients=K, alpha=alpha, seed=seed).partition(y, a).indices]
            for seed in range(draws)
        ]
    )
    variance = (1 / K) * (1 - 1 / K) / (K * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / K, atol=4 * np.sqrt(variance / draws))
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_classes_are_split_independently():
    y, a = labels(2000, 2)
    draws = [DirichletPartitioner(num_clients=5, alpha=1.0, seed=seed).partition(y, a) for seed in range(300)]
    first = np.array([[(y[part.indices[0]] == label).sum() for label in (0, 1)] for part in draws])
    assert abs(np.corrcoef(first.T)[0, 1]) < 0.2


def test_everything_is_dealt():
    y, a = labels(997, 3)
    partition = DirichletPartitioner().partition(y, a)
    assert np.array_equal(np.sort(np.concatenate(partition.indices)), np.arange(997))


@given(st.integers(1, 30), st.floats(1e-6, 100), st.integers(1, 4), st.integers(0, 5), st.integers(0, 40))
def test_every_client_gets_min_samples(num_clients, alpha, min_samples, seed, spare):
    y, a = labels(num_clients * min_samples + spare, 2)
    partitioner = DirichletPartitioner(num_clients=num_clients, alpha=alpha, min_samples=min_samples, seed=seed)
    sizes = [len(client) for client in partitioner.partition(y, a).indices]
    assert len(sizes) == num_clients
    assert min(sizes) >= min_samples
    assert sum(sizes) == len(y)


def test_the_repair_takes_from_whoever_has_most():
    y, a = labels(1000, 1)
    plain = DirichletPartitioner(num_clients=10, alpha=0.05, min_samples=1, seed=3).partition(y, a)
    repaired = DirichletPartitioner(num_clients=10, alpha=0.05, min_samples=20, seed=3).partition(y, a)
    before, after = ([len(client) for client in each.indices] for each in (plain, repaired))
    assert min(before) < 20, "or there is nothing to repair"
    for was, now in zip(before, after, strict=True):
        assert now == max(was, 20) or (was == max(before) and now < was)


@pytest.mark.parametrize("alpha", [1e-3, 1e-12, 1e-300, 5e-324])
def test_a_tiny_alpha_gives_each_class_to_one_client(alpha):
    y, a = labels(300, 3)
    partition = DirichletPartitioner(num_clients=8, alpha=alpha, min_samples=1, seed=1).partition(y, a)
    for label in range(3):
        largest = max((y[client] == label).sum() for client in partition.indices)
        assert largest >= 100 - 8, "all of the class but for the repair of empty clients"


@pytest.mark.parametrize("alpha", [1e6, 1e9])
def test_a_huge_alpha_gives_everybody_the_global_distribution(alpha):
    y, a = labels(4800, 2)
    partition = DirichletPartitioner(num_clients=24, alpha=alpha).partition(y, a)
    for client in partition.indices:
        assert np.abs(np.bincount(y[client]) - 100).max() <= 2


def test_a_smaller_alpha_is_more_skewed():
    y, a = labels(4800, 2)

    def skew(alpha):
        partition = DirichletPartitioner(num_clients=24, alpha=alpha, seed=2).partition(y, a)
        return np.mean([InteractionMatrix.from_labels(y[k], a[k], 2, 1).triplet.class_imbalance for k in partition.indices])

    assert skew(0.1) > skew(1.0) > skew(10.0)


def test_too_few_samples_are_refused():
    with pytest.raises(InfeasiblePartitionError, match="at least 2 samples for each of 24 clients, but got 47 samples"):
        DirichletPartitioner(num_clients=24, min_samples=2).partition(*labels(47))


def test_it_demands_nothing_and_takes_everything():
    assert DirichletPartitioner().demand is None
    assert DirichletPartitioner().uses_all_samples


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_clients": 0}, r"`partition\.num_clients` to be a whole number, 1 or larger"),
        ({"alpha": 0.0}, r"`partition\.alpha` in \(0, 1e9\]"),
        ({"alpha": float("nan")}, r"`partition\.alpha` in \(0, 1e9\]"),
        ({"alpha": float("inf")}, r"`partition\.alpha` in \(0, 1e9\]"),
        ({"alpha": 1e308}, r"`partition\.alpha` in \(0, 1e9\]"),
        ({"min_samples": 0}, r"`partition\.min_samples` to be a whole number, 1 or larger"),
    ],
)
def test_impossible_arguments_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        DirichletPartitioner(**changed)
