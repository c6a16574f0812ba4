"""So many clients that only a few of them check in for a round."""

import numpy as np

from fedfacet.arguments import check_whole
from fedfacet.participation.base import Participation


class CheckIn(Participation):
    """A number of clients, drawn uniformly anew for every round, check in with the server; the others are away.

    A selector asks and compares those alone: of a million clients, FedDiverse then learns about some thousand in a round
    instead of all in the first, and a round costs what its candidates cost. Where fewer clients check in than a round has
    places, all of them take part.

    Source: Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, arXiv:1902.01046, section 2.2.

    Args:
        num_clients: how many check in, 1 or larger; all do where there are no more.
    """

    def __init__(self, *, num_clients: int = 2000) -> None:
        check_whole("participation.num_clients", num_clients)
        self.num_clients = num_clients

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return those who check in."""
        here = rng.choice(num_clients, size=min(self.num_clients, num_clients), replace=False)
        return tuple(np.sort(here).tolist())
