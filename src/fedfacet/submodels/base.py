"""The contract of a sub-model, and the arithmetic on parts of a model that all of them share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Declared

Channels = Mapping[str, NDArray[np.int64]]
"""Group of channels -> the sorted positions of those that a client holds."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A client whose part is asked for.

    Attributes:
        client_id: position of the client in the partition.
        round: number of the round, counted from 1.
        seed: the run's seed.
        rates: of all clients in this round, each in (0, 1].
    """

    client_id: int
    round: int
    seed: int
    rates: NDArray[np.float64]

    @property
    def rate(self) -> float:
        """The client's own."""
        return float(self.rates[self.client_id])


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """A method's place among the ways to integrate smaller models.

    Source: the thesis, section 4.4, figure 8, and the frequencies of tables 24 to 26. Fixed sets of groups, and of each client,
    change their holders in every round there, so that "fixed" is no "always the same".

    Args:
        code: three letters of grouping (O one, G groups, U unique), dynamics (F fixed, S resampled) and policy (M sub-matrix,
            R random); ``"-"`` for what has no place in the thesis.
        grouping: who shares a set of channels.
        dynamics: whether sets change.
        policy: which channels a set has.
        known_as: the name that it was published under; ``"-"`` for none but the code.
        again: in which of the rounds a client holds the set that it holds in this one.
    """

    code: str
    grouping: str
    dynamics: str
    policy: str
    known_as: str
    again: str


class Submodel(Declared, ABC):
    """Which channels of the model a client holds in a round.

    Arguments that are out of range raise ``ValueError``. What is drawn is drawn under the run's seed, the round and the client,
    so that a round can be run again.
    """

    option_group = "submodel."

    coupled: bool = True
    """Whether a layer's inputs are the outputs of the layer before; otherwise they are chosen on their own."""

    @property
    def taxonomy(self) -> Taxonomy | None:
        """The method's place in the thesis' taxonomy; ``None`` where it says nothing of it."""
        return None

    @abstractmethod
    def channels(self, holder: Holder, sizes: Mapping[str, int]) -> Channels:
        """Return the channels of a client, ``kept(rate, N)`` of every group of N."""


def kept(rate: float, size: int) -> int:
    """Return ceil(r N), the number of channels that a client with rate r holds of N.

    Example:
        >>> kept(0.5, 16), kept(0.5, 5), kept(0.1, 30)
        (8, 3, 3)
    """
    return max(1, math.ceil(rate * size - 1e-9))  # 0.1 * 30 is a little more than 3
