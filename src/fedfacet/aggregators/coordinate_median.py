"""The median of the updates, entry by entry."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.types import ClientUpdate, ServerState, State


class CoordinateMedian(Aggregator):
    r"""Move every entry of the model by the median of what the clients would move it by.

    .. math:: w_j \leftarrow w_j + \operatorname{med}_k \, (\Delta_k)_j

    Where half of the weight lies on either side of a gap, as with an even number of equal weights, it is the middle of the gap.
    As long as bad clients have less than half of the weight, no entry leaves the range of what honest clients sent.

    Source: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498,
    definition 1 and algorithm 1, option I.

    Deviations: the paper's workers send gradients, and count alike, which is ``weighting=equal``. With ``weighting=samples`` it
    is the weighted median, and a client that claims many samples has much weight.

    Args:
        buffers: ``"average"`` takes floating-point buffers as it takes parameters, by their median, or a bad client's would get
            in; ``"keep"`` leaves the server's untouched.
    """

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the median."""
        updates = list(updates)
        weights = torch.tensor([self.weight(update) for update in updates], dtype=torch.float64)

        def median(values: Tensor) -> Tensor:
            ascending, order = values.sort(dim=1)
            below = weights[order].cumsum(dim=1)
            half = below[:, -1:] / 2
            ranks = torch.stack([(below < half).sum(dim=1), (below <= half).sum(dim=1)], dim=1)
            lower, upper = ascending.gather(1, ranks).double().unbind(dim=1)
            return lower + (upper - lower) / 2

        return server, state.add(model, state.by_entry([self.sent(update) for update in updates], median))
