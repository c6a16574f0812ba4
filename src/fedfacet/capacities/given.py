"""Every client has a rate of its own."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.capacities.base import Capacity


class GivenCapacity(Capacity):
    """Rates as the user lists them.

    Args:
        rates: one per client, each in (0, 1].
    """

    def __init__(self, *, rates: Sequence[float]) -> None:
        for rate in rates:
            check_within("capacity.rates", rate, "(0, 1]")
        self._rates = np.array(rates, dtype=np.float64)
        self.levels = tuple(sorted({float(rate) for rate in rates if rate < 1}, reverse=True))

    def rates(self, num_samples_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the rates.

        Raises:
            ValueError: if there are more or fewer than clients.
        """
        if len(self._rates) != len(num_samples_K):
            raise ValueError(
                f"Expected `capacity.rates` to have one rate for each of {len(num_samples_K)} clients, but got "
                f"{len(self._rates)}: list them all, in the order of the clients."
            )
        return self._rates
