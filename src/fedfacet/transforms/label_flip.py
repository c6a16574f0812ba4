"""Clients whose labels are wrong."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng as streams
from fedfacet.arguments import check_choice, check_whole
from fedfacet.transforms.base import UpdateTransform, named
from fedfacet.types import ClientUpdate


class LabelFlip(UpdateTransform):
    r"""Have some clients take their samples for other classes than they are: a fault, or an attack on the model.

    With ``"flip"`` the Y classes change places, :math:`y \leftarrow Y - 1 - y`; with ``"shuffle"`` a client's labels are dealt
    to its samples at random, once, so that their counts stay. Such a client trains on them, and answers questions of the
    server by them; the update is sent as it comes. Who owns what, validation and test, and what a client holds out for
    measuring keep the true labels.

    Source: ``"flip"`` is of Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security
    2020, arXiv:1911.11815, section on experiments.

    Args:
        clients: numbers of the clients, from 0.
        how: ``"flip"`` or ``"shuffle"``.
        seed: of the shuffling, 0 or larger; it does not follow the run's seed.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, *, clients: Sequence[int] = (0,), how: str = "flip", seed: int = 0) -> None:
        check_choice("how", how, ("flip", "shuffle"))
        check_whole("seed", seed, 0)
        self.clients: tuple[int, ...] = named(clients)
        self.how = how
        self.seed = seed

    def relabelled(self, client_id: int, y: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return other classes, if it is one of those clients."""
        if client_id not in self.clients:
            return y
        if self.how == "flip":
            return num_classes - 1 - y
        return streams.stream(self.seed, "label_flip", client_id).permutation(y)

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is: the labels did it."""
        return update
