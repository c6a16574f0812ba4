"""FedGH's harmonisation against projections of whole vectors."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import rng
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedgh import FedGH
from fedfacet.types import ClientUpdate

SIZE = 6


def arriving(updates, num_samples=None, ids=None):
    ids = ids if ids is not None else range(len(updates))
    sizes = num_samples if num_samples is not None else [4] * len(updates)
    return [
        ClientUpdate(
            client_id=i,
            delta={"a": torch.tensor(g[:2], dtype=torch.float64), "b": torch.tensor(g[2:], dtype=torch.float64)},
            buffers={},
            num_samples=n,
            num_steps=1,
            step_weight=1.0,
            metrics={},
        )
        for i, n, g in zip(ids, sizes, updates, strict=True)
    ]


def moved(aggregator, updates, **more):
    start = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(SIZE - 2, dtype=torch.float64)}
    _, after = aggregator.aggregate({}, start, iter(arriving(updates, **more)))
    return np.concatenate([after["a"].numpy(), after["b"].numpy()])


def literal(updates, against="arrived"):
    """The projections, pair by pair, on the vectors themselves."""
    arrived = [np.array(g, dtype=np.float64) for g in updates]
    harmonized = [g.copy() for g in arrived]
    for i, j in itertools.combinations(range(len(arrived)), 2):
        if against == "current":
            arrived = list(harmonized)
        for one, other in ((i, j), (j, i)):
            inner = harmonized[one] @ arrived[other]
            if inner < 0:
                harmonized[one] = harmonized[one] - inner / (arrived[other] @ arrived[other]) * arrived[other]
    return harmonized


def draw(m, seed=0):
    return rng.stream(seed, "updates", m).normal(size=(m, SIZE))


def test_two_that_conflict_in_the_plane():
    """(1, 0) and (-1, 1): the first becomes (1/2, 1/2), orthogonal to the second; the second (0, 1), to the first."""
    updates = np.zeros((2, SIZE))
    updates[0, 0], updates[1, 0], updates[1, 1] = 1.0, -1.0, 1.0
    assert moved(FedGH(), updates)[:2].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(("against", "third"), [("arrived", (0, 0, 1)), ("current", (1, 0, 1))])
def test_the_two_readings_by_hand(against, third):
    """(-1, 1, 0), (1, 0, 0) and (1, -1, 1).

    The pair 0, 1 leaves (0, 1, 0) and (.5, .5, 0). Update 0 becomes (1, 2, 1) / 3 by update 2. Update 2 conflicts with update 0
    as it arrived by -2, and with what the first pair has left of it by -1. The pair 1, 2 does not conflict.
    """
    updates = np.zeros((3, SIZE))
    updates[:, :3] = [(-1, 1, 0), (1, 0, 0), (1, -1, 1)]
    expected = np.mean([(1 / 3, 2 / 3, 1 / 3), (0.5, 0.5, 0), third], axis=0)
    assert moved(FedGH(against=against), updates)[:3] == pytest.approx(expected)


def test_the_mean_harms_neither_of_a_conflicting_pair():
    updates = draw(2)
    updates[1] = -2 * updates[0] + 0.3 * updates[1]
    assert updates.mean(axis=0) @ updates[0] < 0  # as plain averaging would
    assert (updates @ moved(FedGH(), updates) > 0).all()


@pytest.mark.parametrize("m", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("against", ["arrived", "current"])
def test_it_is_the_projection_of_whole_vectors(m, seed, against):
    updates = draw(m, seed)
    sizes = list(range(3, 3 + m))
    expected = np.average(literal(updates, against), axis=0, weights=sizes)
    assert moved(FedGH(against=against), updates, num_samples=sizes) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    expected, equal = np.mean(literal(updates, against), axis=0), FedGH(weighting="equal", against=against)
    assert moved(equal, updates, num_samples=sizes) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_without_conflict_it_is_fedavg():
    updates = np.abs(draw(4))
    expected = moved(FedAvg(weighting="samples"), updates, num_samples=[1, 2, 3, 4])
    assert moved(FedGH(), updates, num_samples=[1, 2, 3, 4]) == pytest.approx(expected, rel=1e-12)


def test_the_order_of_arrival_does_not_matter():
    updates = draw(4)
    ids = [7, 2, 9, 4]
    results = [moved(FedGH(), updates[list(order)], ids=[ids[i] for i in order]) for order in itertools.permutations(range(4))]
    assert all(np.array_equal(result, results[0]) for result in results)
    assert results[0] == pytest.approx(np.mean(literal(updates[np.argsort(ids)]), axis=0), rel=1e-9)


@pytest.mark.parametrize("against", ["arrived", "current"])
def test_opposite_updates_vanish_instead_of_dividing_by_zero(against):
    update = draw(1)
    result = moved(FedGH(against=against), np.concatenate([update, -update, np.zeros((1, SIZE))]))
    assert result == pytest.approx(np.zeros(SIZE), abs=1e-12)


@given(st.integers(1, 7), st.integers(0, 10**6), st.sampled_from(["arrived", "current"]))
def test_no_update_grows(m, seed, against):
    """A projection never lengthens, so the mean is at most as long as the mean length."""
    updates = draw(m, seed)
    result = moved(FedGH(against=against), updates)
    assert np.linalg.norm(result) <= np.linalg.norm(updates, axis=1).mean() * (1 + 1e-9)
