"""FMore: an auction in which clients sell their samples, speed and bandwidth.

The server announces how it scores offers; a client, whose costs are its secret, finds from that what pays best to offer.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from fedfacet import rng
from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import Choice, Within
from fedfacet.query import Query, needs_of
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import DEVICES, PAYMENTS, Answer, SelectionContext, ServerState

Floats = NDArray[np.float64]

SCORINGS = ("additive", "cobb_douglas", "leontief")

_CELLS = 256
"""Into which the types above a client's own are cut, where offers change with every type (Cobb-Douglas)."""

_ROUNDING = 1e-9
"""Of a score: where all who bid win, and the dearest type is just worth its cost, prices are the scores but for rounding."""


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
        found = np.where(worth, np.minimum(capacities_J, np.min(weights_J * capacities_J) / weights_J), 0.0)
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


class Bid(Query):
    r"""Ask for a bid: how many samples, how much speed and how much bandwidth a client offers, and the price that it asks.

    A client can offer its samples n, its speed :math:`n / t^{UD}` and its bandwidth :math:`1 / t^{UL}` (of the seconds that
    training and sending take its device), each as a part of the largest that the server announced, 1 at most. A unit of
    quality j costs it :math:`\theta \beta_j`. Its type :math:`\theta` is its secret: drawn once in a run, uniformly between
    ``lowest`` and ``highest``, which everybody knows. It bids as ``price`` says.

    Four numbers leave the client: qualities in [0, 1], and a price, 0 or larger. Nothing passes through a model. The type
    itself stays; who knows ``costs`` can tell it from a price.

    Source: Zeng et al., FMore, ICDCS 2020, arXiv:2002.09699. Qualities, types and defaults were not checked against the paper.

    Args:
        costs: beta of samples, speed and bandwidth, each larger than 0 and finite.
        lowest: theta of the client whose costs are least, 0 or larger.
        highest: of the one whose costs are largest, larger than ``lowest``.
    """

    name = "bid"
    kind = "bid"
    form = AnswerForm(shape=(4,), low=0, high=(1, 1, 1, 1e300))
    reads = frozenset[str]()
    needs_model = False
    auction: Auction | None = None

    def __init__(self, *, costs: Sequence[float] = (1.0, 1.0, 1.0), lowest: float = 0.0, highest: float = 1.0) -> None:
        if len(costs) != 3 or not all(0 < cost < 1e300 for cost in costs):
            raise ValueError(f"Expected `costs` to be three numbers larger than 0, and finite, but got {list(costs)}.")
        if not 0 <= lowest < highest < 1e300:
            raise ValueError(f"Expected `lowest` and `highest` with 0 <= lowest < highest, but got {lowest} and {highest}.")
        self.costs = tuple(costs)
        self.lowest = lowest
        self.highest = highest

    def announced(self, auction: Auction) -> "Bid":
        """Return the question as it is put in a round: with the server's announcement."""
        asked = copy(self)
        asked.auction = auction
        asked.floats_down = len(auction.weights) + len(auction.largest) + 2  # and who may bid and win
        return asked

    def answer(self, context: Any) -> Answer:
        """Return three qualities and a price, as a list.

        Raises:
            ConfigError: without devices.
            RuntimeError: if no auction was announced.
        """
        if self.auction is None:
            raise RuntimeError("Expected a bid in an auction, but none was announced: ask `bid.announced(auction)`.")
        number, needs = len(context.data), needs_of(context)
        able = number, _rate(number, needs.compute, math.inf), _rate(1, needs.upload, math.inf)
        capacities = [min(1.0, one / largest) for one, largest in zip(able, self.auction.largest, strict=True)]
        type_ = rng.stream(context.seed, "bid-type", context.client_id).uniform(self.lowest, self.highest)
        qualities, asked = price(self.auction, type_, self.costs, capacities, self.lowest, self.highest)
        return Answer([*qualities.tolist(), asked], floats_up=4, samples=0)


@dataclass(eq=False, kw_only=True)
class FMoreSelector(ClientSelector):
    r"""Hold an auction in every round: the best offers win, and winners are paid what they asked.

    1. The server announces how it scores qualities, how many clients bid and how many win (``Auction``), and
       what the largest number of samples n, speed :math:`n / t^{UD}` and bandwidth :math:`1 / t^{UL}` are, of which each client
       has told its own once (``NumSamples``, ``Resources``).
    2. Every client that is available bids: qualities q of samples, speed and bandwidth, and a price p (``Bid``).
    3. Clients are ranked by :math:`s(q) - p`. The first become the cohort. With ``acceptance`` :math:`\psi < 1` each is passed
       over with probability :math:`1 - \psi` (psi-FMore), so that the same ones do not win every round; those passed over take
       the places that are left.

    Nobody wins who offers nothing, or whose offer is worth less than its price, so that the cohort may be smaller than
    ``federation.cohort_size``, or empty. A winner is paid its price when its update arrives. The payments of a round are
    ``selector/spent`` of ``metrics.csv``, their sum is ``spent`` of ``summary.json``, and ``termination=budget`` ends a run by
    them.

    With :math:`\psi = 1` and clients of alike capacities, no client gains by a bid that another type would make (Bayes-Nash
    equilibrium).

    Source: Zeng et al., FMore: An Incentive Scheme of Multi-dimensional Auction for Federated Learning in MEC, ICDCS 2020,
    arXiv:2002.09699. Neither the formulas nor the defaults were checked against the paper; the thesis speaks of 80 % of the
    clients, and not of psi.

    Deviations: a client reckons as if the others had its own capacities, and psi were 1. What it offers does not change its
    training: who offers a part of its samples still trains on all. Ties are broken by the round's draw.

    A round costs O(K log K), and each client's own bid. Clients disclose their number of samples and the seconds of their
    device once, and four numbers in every round.

    Args:
        bid: asked in every round of all who are available.
        num_samples: asked once of everybody.
        resources: asked once of everybody.
        scoring: ``"additive"``, ``"cobb_douglas"`` or ``"leontief"``.
        weights: of samples, speed and bandwidth, each larger than 0; less than 1 in sum for Cobb-Douglas.
        acceptance: psi, in (0, 1].
    """

    taxonomy = Taxonomy("incentives", "DRT", ("θ", "|D|", "time"), "auction", "ranking", "fixed rounds, accuracy reached")

    provides = frozenset({PAYMENTS})
    sizes_itself = True
    requires = frozenset({DEVICES})

    bid: Bid
    num_samples: Query
    resources: Query
    scoring: Annotated[str, Choice(*SCORINGS)] = "additive"
    weights: Sequence[float] = (1.0, 1.0, 1.0)
    acceptance: Annotated[float, Within("(0, 1]")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.weights) != 3 or not all(0 < weight < 1e300 for weight in self.weights):
            raise ValueError(f"Expected `weights` to be three numbers larger than 0, and finite, but got {list(self.weights)}.")
        if self.scoring == "cobb_douglas" and sum(self.weights) >= 1:
            raise ValueError(
                f"Expected `weights` of less than 1 in sum for scoring=cobb_douglas, but got {list(self.weights)}: a client "
                "would offer everything or nothing, so take [0.3, 0.3, 0.3], or scoring=additive."
            )

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the winners, the best offer first."""
        sizes, seconds = (context.ask_once(query, context.available) for query in (self.num_samples, self.resources))
        largest = (
            _largest(sizes[k] for k in context.available),
            _largest(_rate(sizes[k], seconds[k][1], math.nan) for k in context.available),
            _largest(_rate(1, seconds[k][2], math.nan) for k in context.available),
        )
        auction = Auction(self.scoring, tuple(self.weights), len(context.available), context.num_slots, largest)
        bids = context.ask(self.bid.announced(auction), context.available)
        bids_K4 = np.array([bids[k] for k in context.available], dtype=np.float64)
        qualities_K3, prices_K = bids_K4[:, :3], bids_K4[:, 3]
        scores_K = score(self.scoring, self.weights, qualities_K3)
        gains_K = np.where(scores_K > 0, scores_K - prices_K, -np.inf)
        worth_K = gains_K >= -_ROUNDING * scores_K
        passed_K = context.rng.random(len(gains_K)) >= self.acceptance
        order = np.lexsort((context.rng.random(len(gains_K)), -gains_K, passed_K))
        winners = [context.available[position] for position in order.tolist() if worth_K[position]]
        return winners[: context.num_slots]

    def metrics(self, server: ServerState, result: RoundResult) -> Mapping[str, float]:
        """Return what those are paid whose updates arrived."""
        return {"spent": math.fsum(receipt.answers[self.bid.name][3] for receipt in result.receipts)}


def _rate(amount: float, seconds: float, at_once: float) -> float:
    return amount / seconds if seconds > 0 else at_once


def _largest(values: Iterable[float]) -> float:
    """Return the largest finite one above 0; 1 where there is none."""
    return max((value for value in values if 0 < value < math.inf), default=1.0)
