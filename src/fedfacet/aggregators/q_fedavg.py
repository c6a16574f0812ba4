"""Averaging that weighs clients by their losses."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number
from fedfacet.types import ClientUpdate, Query, ServerState, State

_SMALLEST_LOSS = 1e-10
"""Added to every loss, as in the authors' code, so that a loss of 0 has powers."""

_LARGEST_POWER = 1e30
"""Of a loss; a larger one counts as this, since an update in float32 that it multiplies must stay finite."""


@dataclass(eq=False, kw_only=True)
class QFedAvg(Aggregator):
    r"""Weigh clients by a power of their losses, so that accuracy is spread more evenly over them.

    The aim is the smallest :math:`\sum_k p_k F_k^{q+1} / (q + 1)`. Every member of the cohort reports its loss
    :math:`F_k` of the model that the server sent, and

    .. math::
        w \leftarrow w + \frac{\sum_k p_k F_k^q L \Delta_k}{\sum_k p_k h_k}, \quad
        h_k = q F_k^{q-1} \lVert L \Delta_k \rVert^2 + L F_k^q, \quad L = 1 / \eta_c

    with :math:`\eta_c` the clients' learning rate. q = 0 is FedAvg, bit for bit. Larger values move towards the client with
    the largest loss, by smaller steps. Floating-point buffers are averaged by :math:`p_k` alone.

    Source: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv:1905.10497, algorithm 2, and the
    authors' code for the loss.

    Deviations: the paper samples clients in proportion to their samples and has :math:`p_k` equal in the sums, which is
    ``weighting=equal``; here the selector says who takes part. Where everybody does, ``weighting=samples`` leads to the same
    aim, as in the recipe ``adult_doctorate``. The norm is over trainable parameters. L stays 1 / lr where a scheduler changes
    the learning rate.

    Args:
        local_loss: what clients are asked for.
        q: 0 or larger.
        lr: the clients' learning rate, larger than 0.
    """

    local_loss: Query
    q: Annotated[float, Number("0 or larger, and finite")] = 1.0
    lr: Annotated[float, Number("larger than 0, and finite")] = 0.01

    def report(self) -> Query | None:
        """Return the question for the loss; nothing for q = 0, where it does not count."""
        return self.local_loss if self.q else None

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the state and the model after one step."""
        lipschitz, most = 1 / self.lr, _LARGEST_POWER ** (1 / max(self.q, 1.0))
        total_weight = total_h = 0.0

        def weighed() -> Iterator[ClientUpdate]:
            nonlocal total_weight, total_h
            for update in updates:
                weight = self.weight(update)
                if self.q:
                    loss = np.float64(min(float(update.report), most)) + _SMALLEST_LOSS
                    with np.errstate(over="ignore"):
                        power = float(loss**self.q)
                        slope = float(self.q * loss ** (self.q - 1))
                        square = float(np.float64(lipschitz * state.norm(update.delta)) ** 2)  # infinite where it is too large
                    total_h += weight * (slope * square + lipschitz * power)
                    total_weight += weight
                    update = replace(update, delta=state.scaled(update.delta, power))
                yield update

        mean, buffers = self.average(weighed())  # of F^q Delta, by p
        if self.q:
            mean = state.scaled(mean, lipschitz * total_weight / total_h)
        return server, state.add(model, {**mean, **buffers})
