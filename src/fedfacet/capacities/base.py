"""The contract of a capacity."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray


class Capacity(ABC):
    """Which share of the model's channels each client is able to train.

    Arguments that are out of range raise ``ValueError``. A capacity draws from nothing but the generator it is given and keeps
    no state, so that a round can be run again.
    """

    levels: tuple[float, ...]
    """The rates below 1 that may occur."""

    every_round: bool = False
    """Whether rates are drawn anew in every round."""

    @abstractmethod
    def rates(self, num_samples_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return every client's rate r in (0, 1], shape (K,): it trains ceil(r N) of N channels.

        Args:
            num_samples_K: how many samples each client holds.
            rng: the generator of this draw, the same in every round unless ``every_round``.
        """
