"""Clients that finish only a part of their work."""

from collections.abc import Callable

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.participation.base import Participation


class Stragglers(Participation):
    """A selected client is, with a fixed probability, too slow for all its steps and finishes a uniform part of them.

    Source: the partial work of Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    section 5.2, where a straggler's work is uniform between one unit and all of it.

    Args:
        straggler_probability: in [0, 1].
        min_fraction: the smallest part a straggler finishes, in (0, 1].
    """

    def __init__(self, *, straggler_probability: float = 0.5, min_fraction: float = 0.1) -> None:
        check_within("straggler_probability", straggler_probability, "[0, 1]")
        check_within("min_fraction", min_fraction, "(0, 1]")
        self.straggler_probability = straggler_probability
        self.min_fraction = min_fraction

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return the finished part of the steps."""
        straggles, fraction = draw().random(2).tolist()
        return self.min_fraction + (1 - self.min_fraction) * fraction if straggles < self.straggler_probability else 1.0
