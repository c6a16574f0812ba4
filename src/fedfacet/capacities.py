"""How large a part of the model each client is able to train."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.types import PARTS


class Capacity(ABC):
    """Which share of the model's channels each client is able to train.

    Arguments that are out of range raise ``ValueError``. A capacity draws from nothing but the generator it is given and keeps
    no state, so that a round can be run again.
    """

    provides: ClassVar[frozenset[str]] = frozenset({PARTS})

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


class LargestCapacity(Capacity):
    """The clients with most samples are whole, all others have one rate.

    Source: the thesis, section 4.7.3: "clients with a smaller dataset size are selected first to learn smaller models". Of
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
