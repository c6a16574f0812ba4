import math

import numpy as np
import pytest

from fedfacet.privacy.dp_sgd import DPSGD


def test_every_sample_is_in_a_batch_by_itself_with_the_same_chance():
    """Means and covariances of 4,000 batches of 6 expected among 20: those of independent coins."""
    privacy, draw = DPSGD(), np.random.default_rng(0)
    chosen = np.zeros((4000, 20))
    for row in chosen:
        positions = privacy.batch(draw, 20, 6)
        assert positions.tolist() == sorted(set(positions.tolist()))
        row[positions] = 1
    q, std = 0.3, math.sqrt(0.21)
    assert np.abs(chosen.mean(axis=0) - q).max() < 4.5 * std / math.sqrt(4000)
    covariance = np.cov(chosen.T) - 0.21 * np.eye(20)
    assert np.abs(covariance[~np.eye(20, dtype=bool)]).max() < 4.5 * 0.21 / math.sqrt(4000)
    sizes = chosen.sum(axis=1)
    assert abs(sizes.var() / (20 * 0.21) - 1) < 0.1  # a batch of fixed size would have no variance


@pytest.mark.parametrize("batch_size", [20, 21, 1000])
def test_a_batch_size_of_all_samples_takes_all(batch_size):
    privacy = DPSGD()
    assert privacy.sampling_rate(20, batch_size) == 1
    assert privacy.batch(np.random.default_rng(0), 20, batch_size).tolist() == list(range(20))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("key", ["noise_multiplier", "max_grad_norm"])
def test_values_out_of_range_are_refused(key, value):
    with pytest.raises(ValueError, match=f"privacy.{key}"):
        DPSGD(**{key: value})
    with pytest.raises(ValueError, match=r"privacy\.max_grad_norm"):
        DPSGD(max_grad_norm=0.0)
