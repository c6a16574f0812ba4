"""Clients that send the opposite of what they have learnt."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedfacet import state
from fedfacet.transforms.base import UpdateTransform, named
from fedfacet.types import ClientUpdate


class SignFlip(UpdateTransform):
    r"""Have some clients turn their delta round: a fault, or an attack on the model.

    .. math:: \Delta_k \leftarrow -s \, \Delta_k

    Buffers, extras and what the client keeps stay as they are: a running variance must not become negative.

    Source: Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous
    Datasets, AAAI 2019, arXiv:1811.03761, the sign-flipping attack.

    Args:
        clients: numbers of the clients, from 0.
        scale: s, larger than 0 and finite; with n clients of whom f turn their updates round, an average of equal updates goes
            backwards from (n - f) / f on.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, *, clients: Sequence[int] = (0,), scale: float = 1.0) -> None:
        if not 0 < scale < float("inf"):
            raise ValueError(f"Expected `scale` to be larger than 0, and finite, but got {scale}.")
        self.clients: tuple[int, ...] = named(clients)
        self.scale = scale

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta turned round, if it is one of those clients'."""
        if update.client_id not in self.clients:
            return update
        return replace(update, delta=state.scaled(update.delta, -self.scale))
