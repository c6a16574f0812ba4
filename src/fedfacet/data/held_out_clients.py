"""Clients that never take part: at them a model is measured as it would do at clients that it has never met."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_whole, check_within
from fedfacet.types import Partition


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutClients:
    """Clients of a partition that nobody selects, asks or trains; the others are numbered anew, in their order.

    Attributes:
        numbers: which of the partition's clients they are, in ascending order.
        partition: per held-out client the sorted positions of what it would train on.
        local_holdout: per held-out client the sorted positions of what it holds out of its own samples, as other clients do.
        names: what they are called; may be empty.
    """

    numbers: tuple[int, ...]
    partition: Partition
    local_holdout: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...] = ()


def drawn_clients(num_clients: int, wanted: float | Sequence[int], *, seed: int = 0) -> tuple[int, ...]:
    """Return the clients that never take part, in ascending order.

    Those of a smaller number are among those of a larger one, as long as seed and partition stay.

    Args:
        num_clients: of the partition.
        wanted: how many, a whole number; or the share of all, below 1, rounded, one at least; or the clients themselves.
        seed: of the draw, 0 or larger; it does not follow the run's seed.

    Raises:
        ValueError: if the clients do not exist, or if nobody would be left to take part.

    Example:
        >>> drawn_clients(10, 0.3), drawn_clients(10, 3), drawn_clients(10, [7, 2]), drawn_clients(10, 0)
        ((2, 7, 9), (2, 7, 9), (2, 7), ())
    """
    name = "partition.held_out_clients"
    if isinstance(wanted, Sequence):
        for client_id in wanted:
            check_whole(name, client_id, 0)
        chosen = tuple(sorted(int(client_id) for client_id in wanted))
        if len(set(chosen)) < len(chosen) or (chosen and chosen[-1] >= num_clients):
            raise ValueError(
                f"Expected `{name}` to be different ones of the partition's {num_clients} clients, from 0, but got "
                f"{list(wanted)}: fix the list."
            )
    else:
        if isinstance(wanted, int):
            check_whole(name, wanted, 0)
            number = wanted
        else:
            check_within(name, wanted, "[0, 1)")
            number = max(1, int(wanted * num_clients + 0.5)) if wanted else 0
        order = rng.stream(seed, "held_out_clients").permutation(num_clients)
        chosen = tuple(sorted(order[:number].tolist()))
    if len(chosen) >= num_clients:
        raise ValueError(
            f"Expected `{name}` to leave some of the partition's {num_clients} clients to take part, but got {wanted}: hold "
            "out fewer, or choose a partition with more clients."
        )
    return chosen
