"""Clipping and Gaussian noise: differential privacy of a client's update."""

import math
from dataclasses import replace

import numpy as np
import torch

from fedfacet import state
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import ClientUpdate


class ClipAndNoise(UpdateTransform):
    r"""Clip the delta to an l2 norm and add Gaussian noise to every entry of it.

    .. math:: \Delta \leftarrow \Delta \min(1, c / \lVert\Delta\rVert_2) + \mathcal{N}(0, z^2 c^2 I).

    It protects a client against whoever sees its own update, the server among them: nobody is trusted. Per round in which the
    client takes part it is one Gaussian mechanism. Whether the client sends its update or nothing at all moves what is sent by
    c at most, so that the noise multiplier is z. Whatever else happens to the client's data, one sample more or other samples
    altogether, moves it by 2c at most, so that it is z / 2. If the server saw only the mean of n equal-weight updates (by
    secure aggregation, which is not here), both would be sqrt(n) times as large.

    Only the delta is covered. What else a client sends is not: sample and step counts, the sum of its training losses, answers
    to queries. Running statistics and what methods send along (``buffers``, ``extras``) go into the next model, so a federation
    whose clients send these refuses this transform; layers that stay with the client (``memory``) are not noised.
    The noise is a function of the run's seed: whoever knows the seed can take it off.

    Source: the Gaussian mechanism on clipped updates as in McMahan et al., Learning Differentially Private Recurrent Language
    Models, ICLR 2018, arXiv:1710.06963. Deviation: there the server adds the noise, to the mean; here every client does.

    Args:
        clip_norm: c, larger than 0 and finite, over all trainable parameters together.
        noise_multiplier: z, 0 or larger and finite; 0 only clips.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, *, clip_norm: float = 1.0, noise_multiplier: float = 1.0) -> None:
        if not 0 < clip_norm < math.inf:
            raise ValueError(f"Expected `clip_norm` to be larger than 0 and finite, but got {clip_norm}.")
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(f"Expected `noise_multiplier` to be 0 or larger and finite, but got {noise_multiplier}.")
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta clipped and noised."""
        norm = state.norm(update.delta)
        # Not `norm > clip_norm`: NaN must stay NaN, and be refused by the server, rather than pass unclipped.
        delta = update.delta if norm <= self.clip_norm else state.scaled(update.delta, self.clip_norm / norm)
        if not self.noise_multiplier:
            return replace(update, delta=delta)
        std = self.noise_multiplier * self.clip_norm
        noise = {
            name: torch.as_tensor(std * rng.standard_normal(tuple(tensor.shape)), dtype=tensor.dtype)
            for name, tensor in delta.items()
        }
        return replace(update, delta=state.add(delta, noise))
