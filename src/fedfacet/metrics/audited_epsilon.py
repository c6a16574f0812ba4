"""The privacy that an attack disproves: a lower bound on epsilon."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from fedfacet.arguments import check_choice, check_whole, check_within

SHARES = (1.0, 0.1)
"""Of the coins, those on which an attack is surest: it is tried on all, and on a tenth."""


def audited_epsilon(
    right: int, guesses: int, coins: int, delta: float, *, confidence: float = 0.95, distance: int = 1
) -> float:
    r"""Return an :math:`\epsilon` such that training was not :math:`(\epsilon', \delta)`-private for any smaller one.

    Fair, independent coins decide what is trained on. An attacker sees the model and guesses how coins fell, with the right to
    pass on some. If training is :math:`(\epsilon, \delta)`-private, v right guesses of r are at most as likely as

    .. math::
        \Pr[X \ge v] + 2 m \delta \max_i \frac{1}{i} \Pr[v > X \ge v - i], \quad
        X \sim \mathrm{Binomial}\left(r, \frac{e^\epsilon}{e^\epsilon + 1}\right),

    and every epsilon for which that is less than 1 minus the confidence is refused. All m coins belong to a single training
    run. All that is assumed is that they are fair and independent, and that guesses know of them from the model alone.

    Source: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, arXiv:2305.08846, theorem 5.2
    and appendix D. Addition: ``distance``, by group privacy.

    Args:
        right: v, from 0 to ``guesses``.
        guesses: r, how many guesses the attacker makes at most, settled before the coins are seen; from 0 to ``coins``.
        coins: m, 1 or larger.
        delta: in [0, 1).
        confidence: in (0, 1); so often at least the bound holds.
        distance: by how many neighbours the two faces of a coin are apart: 1 where a sample is trained on or not, 2 where one
            sample is trained on or another in its place, which is as many as removing one and adding another.

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> round(audited_epsilon(right=90, guesses=100, coins=100, delta=0.0), 2)
        1.63
        >>> audited_epsilon(right=50, guesses=100, coins=100, delta=0.0)
        0.0
    """
    check_whole("coins", coins)
    for name, value, most in (("guesses", guesses, coins), ("right", right, guesses)):
        check_whole(name, value, 0)
        if value > most:
            raise ValueError(f"Expected `{name}` to be {most} or fewer, but got {value}.")
    check_within("delta", delta, "[0, 1)")
    check_within("confidence", confidence, "(0, 1)")
    check_choice("distance", distance, (1, 2))

    def excess(epsilon: float) -> float:
        return _likelihood(right, guesses, coins, epsilon, delta, distance) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:  # it grows until the tail alone is too likely, and is 1 in the end
        high *= 2
    found = float(brentq(excess, 0.0, high, xtol=1e-9))
    while excess(found) >= 0 and found > 0:  # round down, never up
        found = max(0.0, found - 1e-9)
    return found


def audited_of(gaps: Sequence[float] | NDArray[np.float64], delta: float, *, confidence: float = 0.95) -> float:
    """Return ``audited_epsilon`` of an attack that scores pairs of samples, of which a coin has chosen which was trained on.

    In every pair it takes the sample with the higher score for the one that was trained on; two equal scores count as a wrong
    guess. It is tried on all pairs, and on the tenth with the largest differences; each bound is held to half of the doubt, so
    that the larger one holds with the confidence asked for.

    Args:
        gaps: per pair the score of the one that was trained on minus that of the other, finite; what is used of it beyond its
            size is whether the guess is right.
        delta: in [0, 1).
        confidence: in (0, 1).

    Returns:
        The bound in terms of neighbours that differ by one sample; NaN without pairs.
    """
    values = np.asarray(gaps, np.float64)
    if not len(values):
        return math.nan
    surest = values[np.argsort(-np.abs(values), kind="stable")]
    bounds = []
    for share in SHARES:
        guessed = surest[: math.ceil(share * len(surest))]
        bounds.append(
            audited_epsilon(
                int((guessed > 0).sum()),
                len(guessed),
                len(surest),
                delta,
                confidence=1 - (1 - confidence) / len(SHARES),
                distance=2,
            )
        )
    return max(bounds)


def _likelihood(right: int, guesses: int, coins: int, epsilon: float, delta: float, distance: int) -> float:
    """Return how likely so many right guesses are at most."""
    apart = distance * epsilon
    slack = delta * (1 if distance == 1 else 1 + math.exp(min(700.0, epsilon)))
    if slack >= 1:
        return 1.0
    chance = 1 / (1 + math.exp(-apart))
    tail = float(binom.sf(right - 1, guesses, chance))
    if not slack or not right:
        return tail
    # Pr[v > X >= v - i] for i = 1, 2, ..., v
    within = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    return min(1.0, tail + 2 * coins * slack * float((within / np.arange(1, right + 1)).max()))
