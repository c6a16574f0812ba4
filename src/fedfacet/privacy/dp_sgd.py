"""Differentially private stochastic gradient descent."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Number
from fedfacet.privacy.base import Privacy
from fedfacet.types import ServerState


@dataclass(frozen=True, kw_only=True)
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
    covered, nor are answers to queries without noise; with ``delta`` a selector that asks for such is refused unless
    ``cover=updates``.

    Every client has an :math:`(\epsilon, \delta)` of its own, by its steps and by q: ``privacy.csv`` has each client's, the
    summary their median and maximum, and ``privacy/epsilon`` in ``metrics.csv`` is the largest.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016, arXiv:1607.00133, algorithm 1, whose accountant
    assumes such batches too.

    Args:
        noise_multiplier: z, 0 or larger and finite; 0 only clips.
        max_grad_norm: C, larger than 0 and finite, over all trainable parameters together.
        delta: of epsilon, in (0, 1), well below one part of a client's samples; ``None`` claims no epsilon.
        accountant: as in ``Privacy``.
        cover: as in ``Privacy``.
        noise_key_file: as in ``Privacy``; one that the server cannot read. Noise and batches follow from it.
        max_epsilon: a client stops taking part before its epsilon would exceed this; ``None`` for no limit.
    """

    unit = "sample"

    max_grad_norm: Annotated[float, Number("larger than 0 and finite")] = 1.0
    max_epsilon: Annotated[float | None, Number("larger than 0 and finite")] = None

    def __post_init__(self) -> None:
        """Check the values, and read the key."""
        super().__post_init__()
        if self.max_epsilon is not None and not self.claims:
            raise ValueError("Expected `privacy.delta` and noise for `privacy.max_epsilon`, but there is no epsilon without.")

    def init(self) -> ServerState:
        """Return the state before the first round; nothing without key and epsilon."""
        return super().init() if self.claims or self.is_secret else {}

    def sampling_rate(self, num_samples: int, batch_size: int) -> float:
        """Return q in (0, 1]."""
        return min(1.0, batch_size / num_samples)

    def batch(self, draw: np.random.Generator, num_samples: int, batch_size: int) -> NDArray[np.int64]:
        """Return the positions of a batch's samples among a client's, ascending; there may be none."""
        return np.flatnonzero(draw.random(num_samples) < self.sampling_rate(num_samples, batch_size))
