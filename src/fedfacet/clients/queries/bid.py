"""What a client offers in an auction, and at what price."""

from collections.abc import Sequence
from copy import copy

from fedfacet import rng
from fedfacet.answer_form import AnswerForm
from fedfacet.auction import Auction, price
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.query import needs_of
from fedfacet.types import Answer


class Bid(Query):
    r"""Ask for a bid: how many samples, how much speed and how much bandwidth a client offers, and the price that it asks.

    A client can offer its samples n, its speed :math:`n / t^{UD}` and its bandwidth :math:`1 / t^{UL}` (of the seconds that
    training and sending take its device), each as a part of the largest that the server announced, 1 at most. A unit of
    quality j costs it :math:`\theta \beta_j`. Its type :math:`\theta` is its secret: drawn once in a run, uniformly between
    ``lowest`` and ``highest``, which everybody knows. It bids as ``fedfacet.auction.price`` says.

    Four numbers leave the client: qualities in [0, 1], and a price, 0 or larger. Nothing passes through a model. The type
    itself stays; who knows ``costs`` can tell it from a price.

    Source: Zeng et al., FMore, ICDCS 2020, arXiv:2002.09699. Qualities, types and defaults were not checked against the paper.

    Args:
        costs: beta of samples, speed and bandwidth, each larger than 0 and finite.
        lowest: theta of the client whose costs are least, 0 or larger.
        highest: of the one whose costs are largest, larger than ``lowest``.

    Raises:
        ValueError: if a value is out of range.
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

    def answer(self, context: QueryContext) -> Answer:
        """Return three qualities and a price, as a list.

        Raises:
            ConfigError: without devices.
            RuntimeError: if no auction was announced.
        """
        if self.auction is None:
            raise RuntimeError("Expected a bid in an auction, but none was announced: ask `bid.announced(auction)`.")
        number, needs = len(context.data), needs_of(context)
        able = number, _rate(number, needs.compute), _rate(1, needs.upload)
        capacities = [min(1.0, one / largest) for one, largest in zip(able, self.auction.largest, strict=True)]
        type_ = rng.stream(context.seed, "bid-type", context.client_id).uniform(self.lowest, self.highest)
        qualities, asked = price(self.auction, type_, self.costs, capacities, self.lowest, self.highest)
        return Answer([*qualities.tolist(), asked], floats_up=4, samples=0)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else float("inf")
