"""The contract of participation: who is able to take part, and how a client's round may end."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


class Participation:
    """Which clients are away, drop out, or finish only a part of their work; these are always there and finish.

    Its methods draw from nothing but the generator they are given and keep no state, so that a round can be run again.
    Arguments that are out of range raise ``ValueError``.
    """

    needs: frozenset[str] = frozenset()
    """What some other part must give: ``WEIGHTED_DRAWS`` where clients have weights."""

    gives_weights: bool = False
    """Whether those who are available are to be drawn in proportion to ``log_weights``, which not every selector does."""

    def available(self, num_clients: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the clients that could take part in this round, in ascending order; none at all is allowed."""
        return range(num_clients)

    def log_weights(self, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the logarithms of the weights by which clients are drawn, shape (num_clients,), up to a constant."""
        return np.zeros(num_clients)

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return the part of the planned local steps that a selected client finishes.

        Args:
            client_id: of a selected client.
            draw: makes the generator of this client in this round; making one costs more than most answers need.

        Returns:
            1 for all of them, a fraction in (0, 1) for the first ceil(fraction * steps), 0 for a client that is sent the model
            and never answers.
        """
        return 1.0
