"""The clients with most samples train the whole model."""

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_whole, check_within
from fedfacet.capacities.base import Capacity


class LargestCapacity(Capacity):
    """The clients with most samples are whole, all others have one rate.

    Source: the thesis, section 4.4: "clients with a smaller dataset size are selected first to learn smaller models". Of
    clients with equally many samples those with the lower number are whole. The server knows the numbers of samples here.

    Args:
        num_whole: how many clients train the whole model, 0 or larger.
        rate: of the others, in (0, 1].

    Example:
        >>> LargestCapacity(num_whole=1).rates(np.array([3, 9, 9]), np.random.default_rng(0))
        array([0.5, 1. , 0.5])
    """

    def __init__(self, *, num_whole: int = 2, rate: float = 0.5) -> None:
        check_whole("capacity.num_whole", num_whole, 0)
        check_within("capacity.rate", rate, "(0, 1]")
        self.num_whole, self.rate = num_whole, rate
        self.levels = (rate,) if rate < 1 else ()

    def rates(self, num_samples_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return 1 for the largest, ``rate`` for the others."""
        rates_K = np.full(len(num_samples_K), float(self.rate))
        rates_K[np.argsort(-num_samples_K, kind="stable")[: self.num_whole]] = 1.0
        return rates_K
