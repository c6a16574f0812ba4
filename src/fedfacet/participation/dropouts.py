"""Clients that are away or drop out."""

from collections.abc import Callable

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.participation.base import Participation


class Dropouts(Participation):
    """Each client is away, and each selected client drops out, with fixed probabilities, independently.

    Args:
        away_probability: that a client is not available in a round, in [0, 1].
        dropout_probability: that a selected client is sent the model and never answers, in [0, 1].
    """

    def __init__(self, *, away_probability: float = 0.0, dropout_probability: float = 0.1) -> None:
        check_within("away_probability", away_probability, "[0, 1]")
        check_within("dropout_probability", dropout_probability, "[0, 1]")
        self.away_probability = away_probability
        self.dropout_probability = dropout_probability

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return the clients that are not away."""
        return tuple(np.flatnonzero(rng.random(num_clients) >= self.away_probability).tolist())

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return 0 for a client that drops out, else 1."""
        return 0.0 if draw().random() < self.dropout_probability else 1.0
