"""The mean of the updates without the largest and the smallest, entry by entry."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Within
from fedfacet.types import ClientUpdate, ServerState, State

_ROUNDING = 1e-9
"""Of the weight that is kept: what is left of a client by a smaller share is left by rounding."""


@dataclass(eq=False, kw_only=True)
class TrimmedMean(Aggregator):
    r"""Average every entry without the share of the weight that has the largest values and the share that has the smallest.

    .. math:: w_j \leftarrow w_j + \frac{\sum_k \kappa_{kj} (\Delta_k)_j}{\sum_k \kappa_{kj}}

    Clients stand in the order of their values of entry j, each as broad as its weight :math:`p_k` is of the sum of all.
    :math:`\kappa_{kj}` is how much of client k lies in :math:`[\beta, 1 - \beta]`. As long as bad clients have no more than the
    share beta of the weight, no entry leaves the range of what honest clients sent.

    Source: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498,
    definition 2 and algorithm 1, option II.

    Deviations: the paper's workers send gradients, and count alike, which is ``weighting=equal``. Where beta times the number
    of clients is not whole, the two clients at the edges count in part; others round it down. With ``weighting=samples`` a
    client that claims many samples has much weight.

    Args:
        trim: beta in [0, 0.5); 0 is FedAvg, bit for bit.
        buffers: ``"average"`` takes floating-point buffers as it takes parameters, by their trimmed mean, or a bad client's
            would get in; ``"keep"`` leaves the server's untouched.
    """

    trim: Annotated[float, Within("[0, 0.5)")] = 0.2

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the trimmed mean."""
        if not self.trim:
            return server, state.add(model, state.weighted_mean((self.sent(one), self.weight(one)) for one in updates))
        updates = list(updates)
        weights = torch.tensor([self.weight(update) for update in updates], dtype=torch.float64)

        def mean(values: Tensor) -> Tensor:
            ascending, order = values.sort(dim=1)
            ordered = weights[order]
            ends = ordered.cumsum(dim=1)
            low, high = self.trim * ends[:, -1:], (1 - self.trim) * ends[:, -1:]
            kept = torch.minimum(ends, high) - torch.maximum(ends - ordered, low)
            # 0.29 of 100 clients is a hair less than 29 in floating point, and a hair of a bad client may be anything.
            kept = kept.where(kept > _ROUNDING * (high - low), 0)
            means = (ascending.double() * (kept / kept.sum(dim=1, keepdim=True))).sum(dim=1)
            return means.where(ascending[:, 0] < ascending[:, -1], ascending[:, 0])  # the mean of equal values, unrounded

        return server, state.add(model, state.by_entry([self.sent(update) for update in updates], mean))
