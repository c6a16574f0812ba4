"""Averaging for the worst mixture of clients."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number
from fedfacet.simplex import ascended
from fedfacet.types import ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class AgnosticFL(Aggregator):
    r"""Train for the mixture of clients on which the model does worst.

    The aim is :math:`\min_w \max_{\lambda \in \Lambda} \sum_k \lambda_k F_k(w)` over all weights that are not negative and
    add up to 1. Every member of the cohort reports its loss :math:`F_k` of the model that the server sent. The model descends
    and the weights ascend:

    .. math::
        w \leftarrow w + \frac{\sum_k p_k \lambda_k \Delta_k}{\sum_k p_k \lambda_k}, \quad
        \lambda \leftarrow \Pi_\Lambda(\lambda + \gamma F(w)), \quad \lambda_k = 1 / K \text{ at first}

    with sums over the clients whose update arrived. For all others the ascent is 0, and for these it is :math:`F_k` less the
    mean of theirs (``simplex.ascended``). A round whose clients all have weight 0 leaves the model as it is.

    Source: Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv:1902.00146, section 4.3, algorithm 1; as AFL in the
    thesis, table 4 (good-intent fairness).

    Deviations: the paper takes one stochastic step on the mixture and returns the average of all iterates; here a round is a
    client's whole local training, and the result is the last model. In the paper everybody takes part (``selector=all``) and
    :math:`p_k = 1`, which is ``weighting=equal``; the default of the recipe ``adult_doctorate`` is ``samples``.

    Args:
        local_loss: what clients are asked for.
        step: gamma, 0 or larger; 0 is FedAvg but for rounding.
    """

    local_loss: Query
    step: Annotated[float, Number("0 or larger, and finite")] = 0.1

    def report(self) -> Query:
        """Return the question for the loss."""
        return self.local_loss

    def init(self, facts: Facts) -> ServerState:
        """Return weights lambda that are all alike."""
        return {"mixture": torch.full((facts.num_clients,), 1 / facts.num_clients, dtype=torch.float64)}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the next weights and the next model."""
        mixture = server["mixture"]
        losses, answered = torch.zeros_like(mixture), torch.zeros(len(mixture), dtype=torch.bool)
        total_weight = total_share = 0.0

        def weighed() -> Iterator[ClientUpdate]:
            nonlocal total_weight, total_share
            for update in updates:
                losses[update.client_id], answered[update.client_id] = float(update.report), True
                share, weight = float(mixture[update.client_id]), self.weight(update)
                total_weight += weight
                total_share += weight * share
                yield replace(update, delta=state.scaled(update.delta, share))

        mean, buffers = self.average(weighed())  # of lambda Delta, by p
        mean = state.scaled(mean, total_weight / total_share) if total_share else {}
        return {"mixture": ascended(mixture, self.step, losses, answered)}, state.add(model, {**mean, **buffers})
