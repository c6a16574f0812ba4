"""Averaging of updates that the server clips."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class NormBound(Aggregator):
    r"""Scale updates down to an l2 norm, then average them.

    .. math:: w \leftarrow w + \frac{\sum_k p_k \Delta_k \min(1, M / \lVert \Delta_k \rVert_2)}{\sum_k p_k}

    So no client moves the model further than :math:`M p_k / \sum_i p_i`. ``transforms=clip`` does the same to the delta at the
    client, which a bad client leaves undone; here it is the server that does it, to everybody.

    Source: Sun et al., Can You Really Backdoor Federated Learning?, arXiv:1911.07963, section 3, norm thresholding of updates.

    Deviations: the noise that the paper may add besides is left out. The default of ``bound`` is ours; what suits depends on
    the model and on how long clients train.

    Args:
        bound: M, larger than 0, over everything together that is averaged: trainable parameters and, unless they are kept,
            floating-point buffers; infinity is FedAvg, bit for bit.
    """

    bound: Annotated[float, Number("larger than 0")] = 10.0

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        moved = state.weighted_mean((self._bounded(self.sent(update)), self.weight(update)) for update in updates)
        return server, state.add(model, moved)

    def _bounded(self, sent: State) -> State:
        norm = state.norm(sent)
        return state.scaled(sent, self.bound / norm) if norm > self.bound else sent
