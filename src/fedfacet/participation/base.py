"""The contract of participation: who is able to take part, and how a client's round may end."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_within


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


def available_of(participation: Participation, num_clients: int, rng: np.random.Generator) -> Sequence[int]:
    """Ask who could take part.

    Raises:
        ValueError: if the answer is not clients' numbers in ascending order, each once.
    """
    available = participation.available(num_clients, rng)
    if isinstance(available, range) and available == range(num_clients):
        return available
    numbers = np.asarray(available)
    if not numbers.size:
        return ()
    whole = numbers.ndim == 1 and numbers.dtype.kind in "iu"
    if not whole or numbers[0] < 0 or numbers[-1] >= num_clients or (numbers[1:] <= numbers[:-1]).any():
        came = f"a mask of {numbers.size}: `np.flatnonzero` makes numbers of it" if numbers.dtype == bool else f"{available}"
        raise ValueError(
            f"Expected {type(participation).__name__}.available to return the numbers of clients, from 0 to {num_clients - 1}, "
            f"in ascending order and each once, but got {came}."
        )
    return [int(number) for number in numbers]


def log_weights_of(participation: Participation, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Ask what weighs clients' chances.

    Raises:
        ValueError: if the answer is not a number for each client.
    """
    log_weights = participation.log_weights(num_clients, rng)
    if np.shape(log_weights) != (num_clients,) or np.isnan(log_weights).any():
        came = "NaN among them" if np.shape(log_weights) == (num_clients,) else f"the shape {np.shape(log_weights)}"
        raise ValueError(
            f"Expected {type(participation).__name__}.log_weights to return a number for each of {num_clients} clients, but "
            f"got {came}; -inf is for a client that is never drawn."
        )
    return log_weights


def outcome_of(participation: Participation, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
    """Ask which part of its steps a client finishes.

    Raises:
        ValueError: if it is not between 0 and 1.
    """
    finished = participation.outcome(client_id, draw)
    check_within(f"{type(participation).__name__}.outcome", finished, "[0, 1]")
    return finished
