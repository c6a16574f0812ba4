import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize

from fedfacet.methods.fmore import SCORINGS, Auction, best_qualities, chance, price, score

WEIGHTS = {"additive": (1.0, 0.6, 0.3), "cobb_douglas": (0.3, 0.2, 0.4), "leontief": (1.0, 0.6, 0.9)}
COSTS = (0.5, 0.9, 0.4)


def auction_of(scoring, bidders, winners):
    return Auction(scoring, WEIGHTS[scoring], bidders, winners, (1.0, 1.0, 1.0))


# Closed forms


@pytest.mark.parametrize(
    ("bidders", "winners", "type_", "expected"),
    [(2, 1, 0.5, 0.75), (5, 2, 0.5, 0.64), (3, 1, 0.4, 0.6), (2, 2, 0.5, 1.0), (1, 1, 0.3, 1.0), (5, 2, 1.0, 1.0)],
)
def test_prices_of_a_thing_that_everybody_has(bidders, winners, type_, expected):
    """One quality that is worth more than it costs anybody: 0.5 + 0.125 / 0.5, 0.5 + 0.04375 / 0.3125, ..."""
    auction = Auction("additive", (2.0,), bidders, winners, (1.0,))
    qualities, asked = price(auction, type_, (1.0,), (1.0,), 0.0, 1.0)
    assert qualities.tolist() == [1.0]
    assert asked == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("bidders", "winners"), [(2, 1), (5, 2), (9, 8), (4, 4), (3, 5)])
def test_the_chance_to_win_is_the_sum_over_those_who_are_cheaper(bidders, winners):
    for type_ in (2.0, 2.3, 3.1, 4.0):
        share = (type_ - 2) / 2
        expected = sum(comb(bidders - 1, j) * share**j * (1 - share) ** (bidders - 1 - j) for j in range(min(winners, bidders)))
        assert chance(np.array(type_), 2.0, 4.0, bidders, winners) == pytest.approx(expected, abs=1e-12)


# Oracles


@pytest.mark.parametrize("scoring", SCORINGS)
@given(st.data())
def test_nothing_pays_better_than_the_best_qualities(scoring, data):
    slopes = np.array(data.draw(st.lists(st.floats(0, 3), min_size=3, max_size=3)))
    capacities = np.array(data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)))
    best = best_qualities(scoring, WEIGHTS[scoring], capacities, slopes)
    assert ((best >= 0) & (best <= capacities)).all()

    def gain(qualities):
        return score(scoring, WEIGHTS[scoring], np.asarray(qualities)) - np.asarray(qualities) @ slopes

    grid = np.array(list(itertools.product(*(np.linspace(0, capacity, 9) for capacity in capacities))))
    assert gain(best) >= gain(grid).max() - 1e-12
    if scoring == "cobb_douglas" and (capacities > 1e-3).all():  # it is concave: an optimiser finds the top
        start = np.clip(best, 1e-9, None)
        found = minimize(lambda q: -gain(np.clip(q, 0, None)), start, bounds=[(0, capacity) for capacity in capacities])
        assert gain(best) >= -found.fun - 1e-9


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("bidders", "winners", "highest"), [(2, 1, 1.0), (6, 3, 2.5), (30, 4, 1.2)])
def test_the_price_is_the_cost_and_the_integral_above(scoring, bidders, winners, highest):
    auction, capacities, lowest = auction_of(scoring, bidders, winners), (0.9, 0.5, 0.7), 0.2

    def marginal(type_):
        return best_qualities(scoring, auction.weights, capacities, type_ * np.array(COSTS)) @ np.array(COSTS)

    def winning(type_):
        return float(chance(np.array(type_), lowest, highest, bidders, winners))

    for type_ in (0.2, 0.5, 0.8):
        _, asked = price(auction, type_, COSTS, capacities, lowest, highest)
        steps = [w / c for w, c in zip(auction.weights, COSTS, strict=True)]
        steps = [*steps, 1 / sum(1 / step for step in steps)]
        steps = [step for step in steps if type_ < step < highest]
        over, _ = quad(lambda t: marginal(t) * winning(t), type_, highest, points=steps or None, limit=400)
        assert asked == pytest.approx(type_ * marginal(type_) + over / winning(type_), rel=2e-3 if "cobb" in scoring else 1e-7)


# Properties


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("bidders", "winners"), [(2, 1), (5, 2), (24, 9), (4, 4)])
@pytest.mark.parametrize("highest", [0.9, 2.5])
def test_nobody_gains_by_the_bid_of_another_type(scoring, bidders, winners, highest):
    """Every type on a grid, pretending to be every other; the highest of these finds some qualities not worth their cost."""
    auction, types = auction_of(scoring, bidders, winners), np.linspace(0.1, highest, 41)[:-1]
    bids = [price(auction, type_, COSTS, (0.9, 0.5, 0.7), 0.1, highest) for type_ in types]
    asked, costs = np.array([p for _, p in bids]), np.array([q @ np.array(COSTS) for q, _ in bids])
    gains = np.array([score(scoring, auction.weights, q) - p for q, p in bids])
    assert (asked >= types * costs).all(), "no price is below the cost"
    assert (np.diff(gains) <= 1e-12).all(), "dearer clients rank lower, so that the chance to win is G"
    assert (gains >= -1e-12).all(), "no offer is worth less than its price"
    winning = chance(types, 0.1, highest, bidders, winners)
    profits = (asked[None, :] - types[:, None] * costs[None, :]) * winning[None, :]  # of type i with the bid of type j
    tolerance = 2e-4 if scoring == "cobb_douglas" else 1e-9
    assert (np.diag(profits) >= profits.max(axis=1) - tolerance).all()
    assert np.diag(profits).max() > 0


def test_with_more_rivals_prices_fall_to_the_cost():
    prices = [price(auction_of("additive", n, 2), 0.5, COSTS, (1, 1, 1), 0.0, 1.0)[1] for n in (3, 10, 100, 10_000, 10**6)]
    assert (np.diff(prices) <= 0).all()
    assert prices[-1] == pytest.approx(0.5 * sum(COSTS), abs=1e-5)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_who_has_nothing_or_pays_nothing_bids_too(scoring):
    for capacities, type_ in itertools.product([(0.0, 0.0, 0.0), (0.0, 1.0, 1.0), (1.0, 1.0, 1.0)], [0.0, 0.5, 1.0]):
        qualities, asked = price(auction_of(scoring, 5, 2), type_, COSTS, capacities, 0.0, 1.0)
        assert np.isfinite(qualities).all()
        assert 0 <= asked < np.inf
        assert (qualities <= capacities).all()
