"""Federated averaging."""

from collections.abc import Iterable

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.types import ClientUpdate, ServerState, State


class FedAvg(Aggregator):
    r"""Replace the model by the clients' weighted average.

    .. math:: w \leftarrow w + \frac{\sum_k p_k \Delta_k}{\sum_k p_k}, \quad \Delta_k = w_k - w

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629, algorithm 1. The sum runs over the clients whose update arrived; FedDiverse's equation 1 prints n_k / n
    with a sum loss, which would weight by n_k twice.

    Deviation: every client counts the same by default, :math:`p_k = 1`, on which published digests rest. Algorithm 1 has
    :math:`p_k = n_k`: give ``weighting="samples"`` for it.
    """

    takes_mean = True

    @property
    def entrywise(self) -> bool:
        """True."""
        return True

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the averaged model."""

        def weighed(update: ClientUpdate) -> tuple[State, float | tuple[float, State]]:
            sent = update.delta | update.buffers if self.buffers == "average" else update.delta
            weight = float(update.num_samples) if self.weighting == "samples" else 1.0
            return sent, weight if update.mask is None else (weight, update.mask)

        return server, state.add(model, state.weighted_mean(map(weighed, updates)))
