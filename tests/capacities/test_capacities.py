"""How large a part each client trains."""

import numpy as np
import pytest

from fedfacet.capacities import GivenCapacity, LargestCapacity, ProportionsCapacity

SIZES = np.array([30, 50, 10, 50, 20, 40])


def rates(capacity, seed=0):
    return capacity.rates(SIZES, np.random.default_rng(seed)).tolist()


def test_the_largest_are_whole_and_ties_go_to_the_lower_number():
    assert rates(LargestCapacity(num_whole=1, rate=0.25)) == [0.25, 1, 0.25, 0.25, 0.25, 0.25]
    assert rates(LargestCapacity(num_whole=3)) == [0.5, 1, 0.5, 1, 0.5, 1]
    assert rates(LargestCapacity(num_whole=0)) == [0.5] * 6
    assert rates(LargestCapacity(num_whole=99)) == [1.0] * 6
    assert LargestCapacity(rate=1).levels == ()


def test_proportions_are_met_or_drawn():
    fixed = ProportionsCapacity(rates=[1.0, 0.5, 0.25], shares=[1, 1, 4])
    assert sorted(rates(fixed)) == [0.25] * 4 + [0.5, 1.0]
    assert rates(fixed, 1) != rates(fixed, 2)
    assert (fixed.every_round, fixed.levels) == (False, (0.5, 0.25))
    dynamic = ProportionsCapacity(rates=[1.0, 0.5], shares=[1, 3], assignment="dynamic")
    drawn = np.array([rates(dynamic, seed) for seed in range(1000)])
    assert dynamic.every_round
    assert abs((drawn == 0.5).mean() - 0.75) < 0.02


def test_given():
    assert rates(GivenCapacity(rates=[1, 0.5, 0.5, 0.25, 1, 1])) == [1, 0.5, 0.5, 0.25, 1, 1]
    with pytest.raises(ValueError, match="one rate for each of 6 clients, but got 2"):
        rates(GivenCapacity(rates=[1, 0.5]))


@pytest.mark.parametrize("rate", [0, -0.5, 1.5, float("nan"), float("inf")])
def test_refuses_rates_that_are_none(rate):
    for make in (
        lambda: LargestCapacity(rate=rate),
        lambda: GivenCapacity(rates=[1, rate]),
        lambda: ProportionsCapacity(rates=[1, rate]),
    ):
        with pytest.raises(ValueError, match=r"in \(0, 1\]"):
            make()


@pytest.mark.parametrize(
    ("values", "shares"), [([], []), ([1.0], [1, 1]), ([1.0, 0.5], [1, 0]), ([1.0, 0.5], [1, float("nan")])]
)
def test_refuses_shares_that_do_not_fit(values, shares):
    with pytest.raises(ValueError, match=r"as many `capacity\.shares`"):
        ProportionsCapacity(rates=values, shares=shares)
