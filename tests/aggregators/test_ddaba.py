import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.aggregators.ddaba import DDaBA, gap_weights
from fedfacet.build import build
from fedfacet.errors import ConfigError
from fedfacet.types import ClientUpdate


def test_a_usual_spread_leaves_nobody_out():
    """Only the best is within ln(10/9) of the mean gap, .023, and none is beyond 3.03 times it."""
    weights = gap_weights([0.90, 0.91, 0.89, 0.92, 0.88, 0.90, 0.91, 0.89, 0.90, 0.87])
    assert weights * 11 == pytest.approx([1, 1, 1, 2, 1, 1, 1, 1, 1, 1])


def test_far_clients_are_left_out():
    """A gap of .4 against 3.03 times the mean gap of .12."""
    assert gap_weights([0.9] * 7 + [0.5] * 3) == pytest.approx([1 / 7] * 7 + [0] * 3)


@pytest.mark.parametrize("accuracies", [[0.3], [0.0, 0.0], [0.7] * 5])
def test_equal_accuracies_weigh_alike(accuracies):
    assert gap_weights(accuracies) == pytest.approx(1 / len(accuracies))


def quantifier(x, b, c):
    """Q, with y_b as the source has it, in exact places."""
    y_b = 2 * b / (b + c)
    if x <= b:
        return x / b * y_b
    return y_b + (1 - y_b) * (x - b) / (c - b) if x <= c else 1.0


@given(st.lists(st.integers(0, 100), min_size=2, max_size=20).filter(lambda hits: len(set(hits)) > 1))
def test_it_is_the_ordered_weighted_average_of_the_source(hits):
    accuracies = np.array(hits) / 100
    m, gaps = len(hits), accuracies.max() - accuracies
    b, c = (gaps < np.log(10 / 9) * gaps.mean()).mean(), 1 - (gaps > (np.log(4) + 1.5 * np.log(3)) * gaps.mean()).mean()
    by_rank = [quantifier(i / m, b, c) - quantifier((i - 1) / m, b, c) for i in range(1, m + 1)]
    ranked = gap_weights(accuracies)[np.argsort(-accuracies, kind="stable")]
    assert ranked == pytest.approx(np.array(by_rank), abs=1e-9)


def test_a_round_by_hand():
    """The best counts twice; the client at .10 has a gap of .80 against a mean gap of .20."""

    def update(client, delta, right):
        judged = np.array([[[right, 100 - right]], [[0, 0]]])
        change, buffers = torch.tensor([delta], dtype=torch.float64), torch.tensor([float(client)], dtype=torch.float64)
        return ClientUpdate(client, {"w": change}, {"running": buffers}, 10, 1, 1.0, {}, judged=(judged, judged))

    model = {"w": torch.ones(1, dtype=torch.float64), "running": torch.zeros(1, dtype=torch.float64)}
    rights = [80, 90, 85, 10, 85]
    assert np.log(4 * 3**1.5) * 0.2 < 0.8
    _, after = DDaBA().aggregate({}, model, iter([update(k, 10.0**k, right) for k, right in enumerate(rights)]))
    assert after["w"].item() == pytest.approx(1 + (1 + 2 * 10 + 100 + 10_000) / 5)
    assert after["running"].item() == pytest.approx((0 + 2 * 1 + 2 + 4) / 5)


def test_it_needs_samples_of_the_servers(job_of, tmp_path):
    job = job_of("experiment=digits_gsc", "selector=uniform", "aggregator=ddaba", "callbacks=[]", "logger=[]")
    with pytest.raises(ConfigError, match="aggregator=ddaba, but the server has no samples: choose server_data=validation"):
        build(job, tmp_path)
