"""Clients of several rates, in fixed proportions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_choice, check_within
from fedfacet.capacities.base import Capacity


class ProportionsCapacity(Capacity):
    """Each rate belongs to its share of the clients, who are drawn at random.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264, section 4: its model split, "fix" or "dynamic". There a
    client's rate is drawn on its own; here the shares are met up to rounding where the assignment is fixed.

    Args:
        rates: one or more, each in (0, 1].
        shares: of the clients, one per rate, larger than 0; only their proportions count.
        assignment: ``"fixed"`` deals the rates once, so that the shares are met up to one client; ``"dynamic"`` draws every
            client's rate anew in each round.
    """

    def __init__(
        self, *, rates: Sequence[float] = (1.0, 0.5), shares: Sequence[float] = (1.0, 1.0), assignment: str = "fixed"
    ) -> None:
        for rate in rates:
            check_within("capacity.rates", rate, "(0, 1]")
        if not rates or len(rates) != len(shares) or not all(0 < share < float("inf") for share in shares):
            raise ValueError(
                f"Expected `capacity.rates` and as many `capacity.shares`, larger than 0, but got {list(rates)} and "
                f"{list(shares)}."
            )
        check_choice("capacity.assignment", assignment, ("fixed", "dynamic"))
        self._rates = np.array(rates, dtype=np.float64)
        self._shares = np.array(shares, dtype=np.float64) / sum(shares)
        self.every_round = assignment == "dynamic"
        self.levels = tuple(sorted({float(rate) for rate in rates if rate < 1}, reverse=True))

    def rates(self, num_samples_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the rates."""
        num_clients = len(num_samples_K)
        if self.every_round:
            drawn: NDArray[np.float64] = rng.choice(self._rates, size=num_clients, p=self._shares)
            return drawn
        ends = np.rint(np.cumsum(self._shares) * num_clients).astype(int)
        dealt = np.repeat(self._rates, np.diff(ends, prepend=0))
        return dealt[rng.permutation(num_clients)]
