"""An auction in which clients offer qualities of several kinds and ask a price.

The server announces how it scores offers; a client, whose costs are its secret, finds from that what pays best to offer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

Floats = NDArray[np.float64]

SCORINGS = ("additive", "cobb_douglas", "leontief")

_CELLS = 256
"""Into which the types above a client's own are cut, where offers change with every type (Cobb-Douglas)."""


@dataclass(frozen=True, slots=True)
class Auction:
    r"""What the server announces: whoever has the largest :math:`s(q) - p` wins and is paid its p.

    Qualities q lie in [0, 1] each. The score s is :math:`\sum_j w_j q_j` (additive), :math:`\prod_j q_j^{w_j}` (Cobb-Douglas)
    or :math:`\min_j w_j q_j` (Leontief).

    Args:
        scoring: of ``SCORINGS``.
        weights: w, each larger than 0; less than 1 in sum for Cobb-Douglas.
        bidders: N, who may bid, 1 or larger.
        winners: kappa, 1 or larger.
        largest: of each quality, what counts as 1.
    """

    scoring: str
    weights: tuple[float, ...]
    bidders: int
    winners: int
    largest: tuple[float, ...]


def score(scoring: str, weights: Sequence[float], qualities: Floats) -> Floats:
    """Return s(q), shape (...), of qualities of shape (..., J); see ``Auction``.

    Example:
        >>> [float(score(name, (0.5, 0.25), np.array([1.0, 0.0625]))) for name in SCORINGS]
        [0.515625, 0.5, 0.015625]
    """
    weights_J = np.asarray(weights, dtype=np.float64)
    found: Floats
    if scoring == "additive":
        found = qualities @ weights_J
    elif scoring == "cobb_douglas":
        found = np.prod(qualities**weights_J, axis=-1)
    else:
        found = np.min(qualities * weights_J, axis=-1)
    return found


def best_qualities(scoring: str, weights: Sequence[float], capacities: Sequence[float], slopes: Floats) -> Floats:
    r"""Return the qualities of the largest :math:`s(q) - \sum_j b_j q_j` among :math:`0 \le q_j \le` capacity.

    Additive: all of a quality where its weight is larger than b, and nothing else. Leontief: qualities in the proportion of
    :math:`1 / w`, as much as the scarcest allows, if that is worth its cost. Cobb-Douglas: :math:`q_j = \min(cap_j, w_j s /
    b_j)`, and s is the least of the scores that come of taking some qualities whole and the others by that rule.

    Args:
        scoring: of ``SCORINGS``.
        weights: w, shape (J,), as in ``Auction``.
        capacities: in [0, 1], shape (J,).
        slopes: b, what a unit of each quality costs, 0 or larger, shape (..., J).

    Returns:
        Qualities of the slopes' shape.

    Example:
        >>> best_qualities("additive", (1.0, 1.0), (1.0, 0.5), np.array([[0.5, 0.5], [2.0, 0.5]])).tolist()
        [[1.0, 0.5], [0.0, 0.5]]
        >>> best_qualities("leontief", (1.0, 2.0), (1.0, 0.25), np.array([0.5, 0.5])).tolist()
        [0.5, 0.25]
        >>> best_qualities("cobb_douglas", (0.5, 0.25), (1.0, 1.0), np.array([1.0, 1.0])).round(4).tolist()
        [0.0312, 0.0156]
    """
    weights_J, capacities_J = np.asarray(weights, dtype=np.float64), np.asarray(capacities, dtype=np.float64)
    found: Floats
    if scoring == "additive":
        found = np.where(slopes < weights_J, capacities_J, 0.0)
        return found
    if scoring == "leontief":
        worth = np.sum(slopes / weights_J, axis=-1, keepdims=True) < 1
        found = np.where(worth, np.min(weights_J * capacities_J) / weights_J, 0.0)
        return found
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rates = weights_J / slopes
        logs = np.stack([np.broadcast_to(np.log(capacities_J), slopes.shape), np.log(rates)])
        least = np.full(slopes.shape[:-1], np.inf)
        for free in itertools.product((0, 1), repeat=len(weights_J)):
            chosen = sum(weight * logs[kind][..., j] for j, (kind, weight) in enumerate(zip(free, weights_J, strict=True)))
            least = np.fmin(least, chosen / (1 - weights_J @ np.array(free)))
        found = np.minimum(capacities_J, rates * np.exp(least)[..., None])
    return np.where(np.isnan(found), 0.0, found)


def chance(types: Floats, lowest: float, highest: float, bidders: int, winners: int) -> Floats:
    r"""Return G, the chance that fewer than ``winners`` of the other bidders have a lower type.

    .. math::
        G(t) = \sum_{j < \kappa} \binom{N-1}{j} F(t)^j (1 - F(t))^{N-1-j} = I_{1 - F(t)}(N - \kappa, \kappa)

    Others' types are independent and uniform, :math:`F(t) = (t - lo) / (hi - lo)`; I is the regularised incomplete beta
    function. It is 1 where there are as many places as bidders.
    """
    if winners >= bidders:
        return np.ones(np.shape(types))
    found: Floats = betainc(bidders - winners, winners, _above(types, lowest, highest))
    return found


def price(
    auction: Auction,
    type_: float,
    costs: Sequence[float],
    capacities: Sequence[float],
    lowest: float,
    highest: float,
) -> tuple[Floats, float]:
    r"""Return what a client of a type offers in equilibrium, and the price that it asks.

    Quality :math:`q_j` costs it :math:`\theta \beta_j q_j`. It offers :math:`q^* = \arg\max_q s(q) - c(q, \theta)` and asks

    .. math:: p^* = c(q^*, \theta) + \int_\theta^{hi} c_\theta(q^*(t)) \, \frac{G(t)}{G(\theta)} \, dt,
        \quad c_\theta(q) = \sum_j \beta_j q_j,

    never less than its cost. The integral of G has a closed form, so that the price is exact where offers change with the type
    in steps (additive, Leontief). For Cobb-Douglas :math:`c_\theta` is its mean in each of 256 cells. Where no float is as
    small as the chance to win, the price is the cost.

    Source: Zeng et al., FMore, ICDCS 2020, arXiv:2002.09699, for several winners; after Che, Design Competition through
    Multidimensional Auctions, RAND Journal of Economics, 1993. The formula was not checked against the papers.

    Args:
        auction: as announced.
        type_: theta, in [lowest, highest].
        costs: beta, each larger than 0, shape (J,).
        capacities: the most that it can offer of each quality, in [0, 1], shape (J,).
        lowest: lo, 0 or larger.
        highest: hi, larger than ``lowest``.

    Returns:
        Qualities of shape (J,), and the price.

    Example:
        >>> auction = Auction("additive", (2.0,), bidders=2, winners=1, largest=(1.0,))
        >>> price(auction, 0.5, (1.0,), (1.0,), 0.0, 1.0)
        (array([1.]), 0.75)
    """
    costs_J, weights_J = np.asarray(costs, dtype=np.float64), np.asarray(auction.weights)

    def offers(types: Floats) -> Floats:
        return best_qualities(auction.scoring, auction.weights, capacities, types[..., None] * costs_J)

    own, N, places = offers(np.array(type_)), auction.bidders, auction.winners
    cost = type_ * float(costs_J @ own)
    winning = float(chance(np.array(type_), lowest, highest, N, places))
    if winning == 0 or type_ >= highest:
        return own, cost
    if auction.scoring == "cobb_douglas":
        types_T = np.linspace(type_, highest, _CELLS + 1)
    else:  # the types from which on a quality, or all of them, is not worth its cost
        steps = weights_J / costs_J
        if auction.scoring == "leontief":
            steps = np.array([1 / np.sum(1 / steps)])
        types_T = np.unique(np.concatenate([[type_, highest], steps[(steps > type_) & (steps < highest)]]))
    offers_TJ = offers(types_T)
    surplus_T = score(auction.scoring, auction.weights, offers_TJ) - types_T * (offers_TJ @ costs_J)
    # The largest surplus of a type falls by c_theta as the type grows. So its differences are the integrals of c_theta.
    marginal = -np.diff(surplus_T) / np.diff(types_T)
    over = float(marginal @ -np.diff(_integral(types_T, lowest, highest, N, places))) / winning
    return own, cost + max(0.0, over)


def _above(types: Floats, lowest: float, highest: float) -> Floats:
    return np.asarray(np.clip((highest - types) / (highest - lowest), 0.0, 1.0))


def _integral(types: Floats, lowest: float, highest: float, bidders: int, winners: int) -> Floats:
    """Return the integral of G from each type to the highest."""
    if winners >= bidders:
        return highest - types
    a, b, y = bidders - winners, winners, _above(types, lowest, highest)
    below = np.asarray(y * betainc(a, b, y) - a / (a + b) * betainc(a + 1, b, y))
    return (highest - lowest) * below
