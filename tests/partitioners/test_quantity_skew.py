import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import rng
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.synthetic import QuantitySkewPartitioner


def labels(num_samples=1000, num_classes=2):
    return np.sort(np.arange(num_samples) % num_classes), np.zeros(num_samples, dtype=np.int64)


@pytest.mark.parametrize("concentration", [0.85, 10.0])
def test_sizes_have_the_moments_of_the_dirichlet_distribution(concentration):
    """A share has mean 1/K and variance (1/K)(1 - 1/K) / (K c + 1); the cuts round each by at most 1/2000."""
    K, draws, n = 5, 400, 2000
    settings = {"num_clients": K, "concentration": concentration, "descending": False}
    deals = [QuantitySkewPartitioner(**settings, seed=seed).partition(*labels(n, 1)).indices for seed in range(draws)]
    shares = np.array([[len(client) / n for client in deal] for deal in deals])
    variance = (1 / K) * (1 - 1 / K) / (K * concentration + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / K, atol=4 * np.sqrt(variance / draws))
    assert shares.var() == pytest.approx(variance, rel=0.15)


@given(st.integers(1, 30), st.floats(1e-3, 100), st.integers(1, 4), st.integers(0, 5), st.integers(0, 400))
def test_everything_is_dealt_in_equal_mixture_and_nobody_is_left_out(num_clients, concentration, min_samples, seed, spare):
    y, a = labels(num_clients * min_samples + spare, 3)
    partitioner = QuantitySkewPartitioner(
        num_clients=num_clients, concentration=concentration, min_samples=min_samples, seed=seed
    )
    clients = partitioner.partition(y, a).indices
    assert np.array_equal(np.sort(np.concatenate(clients)), np.arange(len(y)))
    sizes = np.array([len(client) for client in clients])
    assert sizes.min() >= min_samples
    if (sizes > min_samples).all():  # nobody was topped up
        mixtures = np.array([np.bincount(y[client], minlength=3) for client in clients])
        assert (np.ptp(mixtures, axis=1) <= 2).all(), "each class is rounded by itself"
        assert (np.diff(sizes) <= 3).all(), "the largest first, but for the rounding of three classes"


@pytest.mark.parametrize("per_class", [1, 7, 450])
def test_rounding_does_not_add_up_over_classes(per_class):
    """Every size is within a sample of its share of all, however small the classes are."""
    y = np.repeat(np.arange(100), per_class)
    shares = np.sort(rng.stream(3, "partition").dirichlet(np.full(10, 0.85)))[::-1]
    clients = QuantitySkewPartitioner(min_samples=1, seed=3).partition(y, np.zeros_like(y)).indices
    sizes = np.array([len(client) for client in clients])
    assert np.abs(sizes - shares * len(y)).max() <= 2


def test_bad_values_are_refused():
    for value in (0, -1, float("nan"), 1e10):
        with pytest.raises(ValueError, match=r"partition\.concentration.*partition=iid"):
            QuantitySkewPartitioner(concentration=value)
    with pytest.raises(InfeasiblePartitionError, match="at least 2 samples for each of 10 clients"):
        QuantitySkewPartitioner().partition(*labels(19))
