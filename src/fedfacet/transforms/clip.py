"""Norm clipping."""

from dataclasses import replace

import numpy as np

from fedfacet import state
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import ClientUpdate


class ClipUpdate(UpdateTransform):
    r"""Scale the delta down to an l2 norm: :math:`\Delta \leftarrow \Delta \min(1, c / \lVert\Delta\rVert_2)`.

    Args:
        clip_norm: c, larger than 0, over all trainable parameters together.

    Raises:
        ValueError: if ``clip_norm`` is not positive.
    """

    def __init__(self, *, clip_norm: float = 10.0) -> None:
        if not clip_norm > 0:
            raise ValueError(f"Expected `clip_norm` to be larger than 0, but got {clip_norm}.")
        self.clip_norm = clip_norm

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update with its delta clipped."""
        norm = state.norm(update.delta)
        if not norm > self.clip_norm:
            return update
        return replace(update, delta=state.scaled(update.delta, self.clip_norm / norm))
