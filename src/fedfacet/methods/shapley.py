"""Shapley values: what each player of a game adds to what all of them come to."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Number, check_whole

Coalition = tuple[int, ...]
"""Players 0, 1, ... in ascending order, each once."""


def shapley_values(
    value: Callable[[Coalition], float],
    number: int,
    rng: np.random.Generator,
    *,
    exact_up_to: int = 6,
    permutations: int = 20,
    tolerance: float = 0.0,
) -> NDArray[np.float64]:
    r"""Return every player's Shapley value, shape (m,), in the unit of ``value``.

    .. math::
        \phi_i = \sum_{S \not\ni i} \frac{|S|! \, (m - |S| - 1)!}{m!} \big( v(S \cup i) - v(S) \big)

    for up to ``exact_up_to`` players, of all :math:`2^m` coalitions. For more it is the mean of :math:`v(S \cup i) - v(S)` over
    random orders of the players, S being those before i: an unbiased estimate, whose sum over the players is
    :math:`v(N) - v(\emptyset)` too. From the place on where v is nearer to :math:`v(N)` than ``tolerance``, what is left of an
    order counts as 0; then the sum is off by as much at most. No coalition is valued twice.

    Source: Shapley, A Value for n-Person Games, 1953; the truncated estimate is that of Ghorbani and Zou, Data Shapley, ICML
    2019, arXiv:1904.02868, algorithm 1.

    Args:
        value: v, finite.
        number: m of the players, 0 or larger.
        rng: draws the orders; not used where values are exact.
        exact_up_to: 0 or larger.
        permutations: how many orders are drawn, 1 or larger.
        tolerance: 0 or larger; 0 cuts no order short.

    Example:
        Two gloves make a pair; player 0 has the left one, 1 and 2 have right ones:

        >>> pair = lambda players: float(0 in players and len(players) > 1)
        >>> shapley_values(pair, 3, np.random.default_rng(0)).round(3).tolist()
        [0.667, 0.167, 0.167]
    """
    check_settings(exact_up_to, permutations, tolerance)
    v = cache(value)
    if number <= exact_up_to:
        return _exact(v, number)
    totals = np.zeros(number)
    whole = v(tuple(range(number)))
    for _ in range(permutations):
        before, last = set[int](), v(())
        for player in rng.permutation(number).tolist():
            if abs(whole - last) < tolerance:
                break
            before.add(player)
            with_player = v(tuple(sorted(before)))
            totals[player] += with_player - last
            last = with_player
    return totals / permutations


def check_settings(exact_up_to: int, permutations: int, tolerance: float) -> None:
    """Raise ``ValueError`` where a setting of ``shapley_values`` is out of range."""
    check_whole("exact_up_to", exact_up_to, 0)
    check_whole("permutations", permutations)
    Number("0 or larger, and finite").check("tolerance", tolerance)


def _exact(v: Callable[[Coalition], float], number: int) -> NDArray[np.float64]:
    masks = np.arange(1 << number)
    members = (masks[:, None] >> np.arange(number)) & 1 == 1
    values = np.array([v(tuple(np.flatnonzero(row).tolist())) for row in members])
    sizes = members.sum(axis=1)
    # |S|! (m - |S| - 1)! / m! by size: the probability that exactly S comes before i, in any order of its own.
    weights = np.ones(max(number, 1))
    weights[0] = 1 / max(number, 1)
    for size in range(1, number):
        weights[size] = weights[size - 1] * size / (number - size)
    found = np.zeros(number)
    for player in range(number):
        without = masks[~members[:, player]]
        found[player] = weights[sizes[without]] @ (values[without | (1 << player)] - values[without])
    return found
