"""What every model of participation keeps to."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.participation import Participation
from fedfacet.types import WEIGHTED_DRAWS


@pytest.fixture(scope="module")
def made(make_part):
    """Return a function: option -> the model of participation, made once, since it keeps nothing; no model is everybody."""
    return functools.cache(lambda option: make_part("participation", option) or Participation())


@given(num_clients=st.integers(1, 40), seed=st.integers(0, 100))
def test_the_available_are_ascending_distinct_clients(participation_option, made, num_clients, seed):
    available = made(participation_option).available(num_clients, np.random.default_rng(seed))
    assert isinstance(available, tuple | range)  # which hold no numbers that somebody could change
    assert all(type(client_id) is int for client_id in available)
    assert list(available) == sorted(set(available))
    assert set(available) <= set(range(num_clients))


@given(client_id=st.integers(0, 40), seed=st.integers(0, 100))
def test_the_outcome_is_a_part_of_the_steps(participation_option, made, client_id, seed):
    outcome = made(participation_option).outcome(client_id, lambda: np.random.default_rng(seed))
    assert type(outcome) is float
    assert 0 <= outcome <= 1


def test_everything_comes_from_the_generator_and_nothing_is_kept(participation_option, made):
    part = made(participation_option)

    def draw(seed):
        rng = np.random.default_rng(seed)
        return part.available(20, rng), [part.outcome(client_id, lambda: rng) for client_id in range(20)]

    first = draw(1)
    draw(2)
    assert draw(1) == first


@given(num_clients=st.integers(1, 40), seed=st.integers(0, 100))
def test_weights_are_finite_and_are_needed_of_the_selector_where_there_are_any(participation_option, made, num_clients, seed):
    part = made(participation_option)
    log_weights = part.log_weights(num_clients, np.random.default_rng(seed))
    assert log_weights.shape == (num_clients,)
    assert np.isfinite(log_weights).all()
    assert part.gives_weights == (WEIGHTED_DRAWS in part.needs)
