import itertools
from math import comb, inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import rng
from fedfacet.methods.shapley import shapley_values


def game(number, seed):
    """Return a drawn game: every coalition's value."""
    values = rng.stream(seed, "game").normal(size=1 << number)
    return lambda players: float(values[sum(1 << player for player in players)])


def by_orders(value, number):
    """The definition: the mean over all orders of what a player adds to those before it."""
    totals = np.zeros(number)
    orders = list(itertools.permutations(range(number)))
    for order in orders:
        for place, player in enumerate(order):
            before = order[:place]
            totals[player] += value(tuple(sorted((*before, player)))) - value(tuple(sorted(before)))
    return totals / len(orders)


def draws(seed=0):
    return rng.stream(seed, "orders")


def sampled(value, number, **settings):
    return shapley_values(value, number, draws(), exact_up_to=0, **settings)


# Closed forms


def test_an_additive_game_gives_each_its_own():
    own = [3.0, -1.0, 0.0, 2.5]
    value = lambda players: sum(own[player] for player in players)  # noqa: E731
    assert shapley_values(value, 4, draws()) == pytest.approx(own)
    assert sampled(value, 4, permutations=1) == pytest.approx(own)


def test_a_majority_of_five_is_shared_equally():
    assert shapley_values(lambda players: float(len(players) >= 3), 5, draws()) == pytest.approx([0.2] * 5)


def test_the_airport_game():
    """What a runway costs is the largest plane's; each share is a sum of increments over those who need them."""
    costs = [1.0, 4.0, 6.0, 6.0]
    expected = [1 / 4, 1 / 4 + 3 / 3, 1 / 4 + 3 / 3 + 2 / 2, 1 / 4 + 3 / 3 + 2 / 2]
    found = shapley_values(lambda players: max((costs[player] for player in players), default=0.0), 4, draws())
    assert found == pytest.approx(expected)


def test_a_game_of_nobody_and_of_one():
    assert shapley_values(lambda players: 7.0, 0, draws()).tolist() == []
    assert shapley_values(lambda players: 7.0 + len(players), 1, draws()).tolist() == [1.0]
    assert sampled(lambda players: 7.0 + len(players), 1).tolist() == [1.0]


@pytest.mark.parametrize("number", range(1, 7))
def test_it_is_the_mean_over_all_orders(number):
    value = game(number, seed=number)
    assert shapley_values(value, number, draws()) == pytest.approx(by_orders(value, number))


# The axioms


@given(st.integers(1, 6), st.integers(0, 50), st.booleans())
def test_efficiency(number, seed, exact):
    value = game(number, seed)
    found = shapley_values(value, number, draws(), exact_up_to=6 if exact else 0, permutations=3)
    assert found.sum() == pytest.approx(value(tuple(range(number))) - value(()))


@given(st.integers(0, 50))
def test_symmetry(seed):
    """The game sees how many of players 1 and 3 there are, and not which."""
    inner = game(3, seed)

    def value(players):
        number = (1 in players) + (3 in players)
        return (1 + number**2) * inner(tuple(player // 2 for player in players if player not in (1, 3)))

    found = shapley_values(value, 5, draws())
    assert found[1] == pytest.approx(found[3])


@given(st.integers(0, 50), st.booleans())
def test_a_player_that_adds_nothing_gets_nothing(seed, exact):
    inner = game(5, seed)
    found = shapley_values(
        lambda players: inner(tuple(p for p in players if p != 2)), 5, draws(), exact_up_to=6 if exact else 0
    )
    assert found[2] == 0


@given(st.integers(0, 50), st.floats(-3, 3), st.floats(-3, 3))
def test_linearity(seed, a, b):
    first, second = game(4, seed), game(4, seed + 1000)
    both = shapley_values(lambda players: a * first(players) + b * second(players), 4, draws())
    parts = [shapley_values(value, 4, draws()) for value in (first, second)]
    assert both == pytest.approx(a * parts[0] + b * parts[1], abs=1e-9)


# The estimate


def test_the_estimate_comes_to_the_exact_values():
    """And its error falls as one over the root of the number of orders."""
    value = game(6, seed=3)
    exact = shapley_values(value, 6, draws())
    errors = [np.abs(sampled(value, 6, permutations=number) - exact).max() for number in (20, 20_000)]
    assert errors[1] < 0.04 < errors[0]


def test_the_draws_decide_the_estimate():
    value = game(8, seed=1)
    first, same, other = (shapley_values(value, 8, draws(seed), permutations=4) for seed in (0, 0, 1))
    assert (first == same).all()
    assert (first != other).any()


def test_an_order_is_cut_short_where_nothing_is_missing():
    """Two of six players are enough; each order ends with the second of them, if not before."""
    asked = []

    def value(players):
        asked.append(players)
        return 0.5 * ((0 in players) + (1 in players))

    found = sampled(value, 6, permutations=200, tolerance=0.01)
    assert found.sum() == pytest.approx(1.0)
    assert found[2:].tolist() == [0.0] * 4
    whole = tuple(range(6))
    assert all(players == whole or not {0, 1} < {*players} or len(players) < 6 for players in asked)
    assert len(asked) == len(set(asked)) <= 1 << 6, "no coalition twice"
    assert sampled(lambda players: 0.9 + 0.001 * len(players), 6, tolerance=0.01).tolist() == [0.0] * 6


@pytest.mark.parametrize("number", [0, 1, 4, 6])
def test_coalitions_are_each_valued_once(number):
    asked = []
    shapley_values(lambda players: asked.append(players) or 0.0, number, draws())
    assert sorted(asked) == sorted(set(asked))
    assert len(asked) == 1 << number
    assert all(players == tuple(sorted(players)) for players in asked)
    assert {len(players) for players in asked} == set(range(number + 1))
    assert sum(len(players) == number // 2 for players in asked) == comb(number, number // 2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("exact_up_to", -1),
        ("permutations", 0),
        ("permutations", 1.5),
        ("tolerance", -0.1),
        ("tolerance", nan),
        ("tolerance", inf),
    ],
)
def test_impossible_settings_are_refused(setting, value):
    with pytest.raises(ValueError, match=f"Expected `{setting}` to be .*, but got {value}"):
        shapley_values(lambda players: 0.0, 2, draws(), **{setting: value})
