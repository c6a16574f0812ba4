"""Differentially private stochastic gradient descent."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.privacy.base import Privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD(Privacy):
    r"""Every sample's gradient is clipped, their sum is noised, and no sample is sure to be in a batch.

    In every local step each of the client's n samples is in the batch S by itself with probability q = min(1, B / n), B being
    ``local.batch_size``. The optimizer then gets

    .. math:: g = \frac{1}{q n} \left( \sum_{i \in S} g_i \min(1, C / \lVert g_i \rVert_2) + \mathcal{N}(0, z^2 C^2 I) \right)

    in the place of the batch's gradient, with :math:`g_i` the gradient of the loss of a batch of sample i alone. A batch may be
    empty; its gradient is noise. A client takes as many steps as without: ``local.unit=epochs`` counts ceil(n / B) an epoch.

    It protects every single sample of a client against whoever sees models, those of the client and all that come of them. Two
    data sets are neighbours if one has a sample whose gradient is 0 in the place of the other's (Kairouz et al., 2021,
    arXiv:2103.00039, "zero-out"), so that n is no secret. Sums of training losses, which clients tell the server, are not
    covered, nor are answers to queries. Batches and noise are functions of the run's seed: whoever knows it can take them off.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016, arXiv:1607.00133, algorithm 1, whose accountant
    assumes such batches too.

    Attributes:
        noise_multiplier: z, 0 or larger and finite; 0 only clips.
        max_grad_norm: C, larger than 0 and finite, over all trainable parameters together.

    Raises:
        ValueError: if a value is out of range.
    """

    noise_multiplier: float = 1.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"Expected `privacy.noise_multiplier` to be 0 or larger and finite, but got {self.noise_multiplier}."
            )
        if not 0 < self.max_grad_norm < math.inf:
            raise ValueError(f"Expected `privacy.max_grad_norm` to be larger than 0 and finite, but got {self.max_grad_norm}.")

    def sampling_rate(self, num_samples: int, batch_size: int) -> float:
        """Return q in (0, 1]."""
        return min(1.0, batch_size / num_samples)

    def batch(self, draw: np.random.Generator, num_samples: int, batch_size: int) -> NDArray[np.int64]:
        """Return the positions of a batch's samples among a client's, ascending; there may be none."""
        return np.flatnonzero(draw.random(num_samples) < self.sampling_rate(num_samples, batch_size))
