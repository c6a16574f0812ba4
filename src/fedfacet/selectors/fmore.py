"""FMore: an auction in which clients sell their samples, speed and bandwidth."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fedfacet.arguments import check_choice, check_within
from fedfacet.auction import SCORINGS, Auction, score
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import PAYMENTS, Query, RoundResult, SelectionContext, ServerState

_ROUNDING = 1e-9
"""Of a score: where all who bid win, and the dearest type is just worth its cost, prices are the scores but for rounding."""


class _AuctionQuery(Query, Protocol):
    """A question for a bid."""

    def announced(self, auction: Auction) -> Query:
        """Return the question with the server's announcement."""


class FMoreSelector(ClientSelector):
    r"""Hold an auction in every round: the best offers win, and winners are paid what they asked.

    1. The server announces how it scores qualities, how many clients bid and how many win (``fedfacet.auction.Auction``), and
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
    arXiv:2002.09699. Neither the formulas nor the defaults were checked against the paper; the thesis has psi of 0.8.

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

    Raises:
        ValueError: if a value is out of range.
    """

    taxonomy = Taxonomy("incentives", "DRT", ("θ", "|D|", "time"), "auction", "ranking", "fixed rounds, accuracy reached")

    gives = frozenset({PAYMENTS})
    sizes_itself = True
    needs_devices = True

    def __init__(
        self,
        *,
        bid: _AuctionQuery,
        num_samples: Query,
        resources: Query,
        scoring: str = "additive",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        acceptance: float = 1.0,
    ) -> None:
        check_choice("scoring", scoring, SCORINGS)
        if len(weights) != 3 or not all(0 < weight < 1e300 for weight in weights):
            raise ValueError(f"Expected `weights` to be three numbers larger than 0, and finite, but got {list(weights)}.")
        if scoring == "cobb_douglas" and sum(weights) >= 1:
            raise ValueError(
                f"Expected `weights` of less than 1 in sum for scoring=cobb_douglas, but got {list(weights)}: a client would "
                "offer everything or nothing, so take [0.3, 0.3, 0.3], or scoring=additive."
            )
        check_within("acceptance", acceptance, "(0, 1]")
        self.bid = bid
        self.num_samples = num_samples
        self.resources = resources
        self.scoring = scoring
        self.weights = tuple(weights)
        self.acceptance = acceptance

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the winners, the best offer first."""
        sizes, seconds = (context.ask_once(query, context.available) for query in (self.num_samples, self.resources))
        largest = (
            _largest(sizes[k] for k in context.available),
            _largest(_rate(sizes[k], seconds[k][1]) for k in context.available),
            _largest(_rate(1, seconds[k][2]) for k in context.available),
        )
        auction = Auction(self.scoring, self.weights, len(context.available), context.places, largest)
        bids = context.ask(self.bid.announced(auction), context.available)
        bids_K4 = np.array([bids[k] for k in context.available], dtype=np.float64)
        qualities_K3, prices_K = bids_K4[:, :3], bids_K4[:, 3]
        scores_K = score(self.scoring, self.weights, qualities_K3)
        gains_K = np.where(scores_K > 0, scores_K - prices_K, -np.inf)
        worth_K = gains_K >= -_ROUNDING * scores_K
        passed_K = context.rng.random(len(gains_K)) >= self.acceptance
        order = np.lexsort((context.rng.random(len(gains_K)), -gains_K, passed_K))
        winners = [context.available[position] for position in order.tolist() if worth_K[position]]
        return winners[: context.places]

    def metrics(self, server: ServerState, result: RoundResult) -> Mapping[str, float]:
        """Return what those are paid whose updates arrived."""
        return {"spent": math.fsum(receipt.answers[self.bid.name][3] for receipt in result.receipts)}


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan


def _largest(values: Iterable[float]) -> float:
    """Return the largest finite one above 0; 1 where there is none."""
    return max((value for value in values if 0 < value < math.inf), default=1.0)
