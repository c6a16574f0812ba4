"""FedLD's equation 2, written out in loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import rng
from fedfacet.metrics.loss_decomposition import LossDecomposition


def draw(seed, m, exponent=0.0):
    generator = rng.stream(seed, "losses")
    scale = 10.0**exponent
    return LossDecomposition(
        generator.integers(1, 1000, size=m), scale * generator.exponential(size=(m, m)), scale * generator.exponential(size=m)
    )


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(-6, 6))
def test_the_signed_terms_add_up(seed, m, exponent):
    parts = draw(seed, m, exponent)
    together = parts.local_loss + parts.distribution_shift_loss + parts.aggregation_loss
    assert together == pytest.approx(parts.global_loss, rel=1e-10)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_every_term_is_the_papers(seed, m):
    parts = draw(seed, m)
    n = parts.num_samples.sum()
    local = shift = aggregation = 0.0
    whole = sum(parts.num_samples[j] / n * parts.global_losses[j] for j in range(m))
    for i in range(m):
        p_i = parts.num_samples[i] / n
        local += p_i * parts.losses[i, i]
        on_all = 0.0
        for j in range(m):
            p_j = parts.num_samples[j] / n
            shift += p_i * p_j * (parts.losses[i, j] - parts.losses[i, i])
            on_all += p_j * parts.losses[i, j]
        aggregation += p_i * (whole - on_all)
    assert parts.terms() == pytest.approx(
        {"local_loss": local, "distribution_shift_loss": shift, "aggregation_loss": aggregation, "global_loss": whole},
        rel=1e-10,
        abs=1e-13,
    )


def test_alone_a_client_has_no_shift():
    parts = LossDecomposition(np.array([7]), np.array([[0.25]]), np.array([0.25]))
    assert parts.terms() == {
        "local_loss": 0.25,
        "distribution_shift_loss": 0.0,
        "aggregation_loss": 0.0,
        "global_loss": 0.25,
    }


def test_one_model_for_all_leaves_only_a_local_loss():
    """Whatever the clients' data: where nothing is shifted between models, nothing is gained by averaging."""
    of_client = np.array([0.3, 1.2, 0.6])
    parts = LossDecomposition(np.array([10, 20, 30]), np.tile(of_client, (3, 1)), of_client)
    assert parts.aggregation_loss == pytest.approx(0, abs=1e-15)
    assert parts.local_loss == pytest.approx(parts.global_loss)
    assert parts.distribution_shift_loss == pytest.approx(0, abs=1e-15)


def test_terms_may_be_negative():
    parts = LossDecomposition(np.array([1, 1]), np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([0.1, 0.1]))
    assert parts.distribution_shift_loss < 0
    assert parts.aggregation_loss < 0


@pytest.mark.parametrize(
    ("losses", "of_global"), [(np.zeros((2, 3)), np.zeros(2)), (np.zeros((2, 2)), np.zeros(3)), (np.zeros((0, 0)), np.zeros(0))]
)
def test_shapes_that_do_not_fit_are_refused(losses, of_global):
    with pytest.raises(ValueError, match=r"Expected losses of shape \(m, m\) and \(m,\)"):
        LossDecomposition(np.ones(len(losses), dtype=int), losses, of_global)
