"""Clients that send noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedfacet.transforms.base import UpdateTransform, named
from fedfacet.types import ClientUpdate


class RandomUpdate(UpdateTransform):
    r"""Have some clients send Gaussian noise instead of what they have learnt: a fault, or an attack on the model.

    .. math:: \Delta_k \leftarrow \sigma \, \mathcal{N}(0, I)

    Buffers, extras and what the client keeps stay as they are: a running variance must not become negative. The noise is drawn
    from the client's own generator for the round (law 2).

    Source: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, arXiv:1703.02757, section on experiments, the
    Gaussian attack, with a standard deviation of 200.

    Args:
        clients: numbers of the clients, from 0.
        scale: sigma, larger than 0 and finite, the standard deviation of every entry.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, *, clients: Sequence[int] = (0,), scale: float = 1.0) -> None:
        if not 0 < scale < float("inf"):
            raise ValueError(f"Expected `scale` to be larger than 0, and finite, but got {scale}.")
        self.clients: tuple[int, ...] = named(clients)
        self.scale = scale

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with another delta, if it is one of those clients'."""
        if update.client_id not in self.clients:
            return update
        delta = {
            name: torch.as_tensor(self.scale * rng.standard_normal(tuple(tensor.shape)), dtype=tensor.dtype)
            for name, tensor in update.delta.items()
        }
        return replace(update, delta=delta)
