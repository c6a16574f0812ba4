"""The point with the smallest sum of distances to the updates."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, Whole
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class GeometricMedian(Aggregator):
    r"""Move the model by the geometric median of the updates, nearly: a few steps of Weiszfeld's algorithm, smoothed.

    The median is the :math:`v` with the smallest :math:`\sum_k p_k \lVert v - \Delta_k \rVert_2`. From the weighted mean on,

    .. math:: v \leftarrow \frac{\sum_k \beta_k \Delta_k}{\sum_k \beta_k}, \quad
        \beta_k = \frac{p_k}{\max(\nu, \lVert v - \Delta_k \rVert_2)}

    is repeated; then the model moves by v. The exact median stays near the honest updates as long as bad clients have less
    than half of the weight. A few steps only come near it: an update of any length still pulls by a share of its length, which
    each step makes smaller. All updates of a round are held at once; what is computed are their m x m inner products.

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning (RFA), IEEE Transactions on Signal
    Processing 70, 2022, arXiv:1912.13445, the smoothed Weiszfeld algorithm. The authors' code starts at the mean too, has
    ``nu=1e-5``, and takes 4 steps, fewer where the sum does not shrink any more. Deviation: the number of steps is fixed. The
    defaults of ``nu`` and ``iterations`` were not checked against the paper.

    Args:
        nu: larger than 0; a distance below it counts as this one.
        iterations: the number of steps, 0 or larger; 0 is FedAvg, bit for bit.
        weighting: ``"samples"`` (p_k = n_k, the paper) or ``"equal"`` (p_k = 1). With the former a client that claims many
            samples has much weight.
        buffers: ``"average"`` takes floating-point buffers for a part of the updates, or a bad client's would get in;
            ``"keep"`` leaves the server's untouched.
    """

    nu: Annotated[float, Number("larger than 0, and finite")] = 1e-6
    iterations: Annotated[int, Whole(0)] = 3

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the median."""
        if not self.iterations:
            return server, state.add(model, state.weighted_mean((self.sent(one), self.weight(one)) for one in updates))
        updates = list(updates)
        bundles = [self.sent(update) for update in updates]
        weights = np.array([self.weight(update) for update in updates])
        gram, shares = state.gram(bundles), weights / weights.sum()
        point = shares  # as a combination of the updates
        for _ in range(self.iterations):
            # The squares of |v - Delta_k|, which rounding may leave a little below 0.
            squares = point @ gram @ point - 2 * gram @ point + np.diag(gram)
            pull = shares / np.maximum(self.nu, np.sqrt(squares.clip(min=0)))
            point = pull / pull.sum()
        return server, state.add(model, state.combination(bundles, point))
