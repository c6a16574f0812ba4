"""Clients drawn by the mixture on which the model does worst."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from fedfacet import rng as streams
from fedfacet.arguments import Whole, Within
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, drawn_order, warn_of
from fedfacet.simplex import nearest_of_simplex
from fedfacet.types import ClientUpdate, Facts, Query, SelectionContext, ServerState


@dataclass(eq=False, kw_only=True)
class AgnosticSelector(ClientSelector):
    r"""Draw clients in proportion to weights that ascend towards the clients of large losses.

    The aim is that of ``aggregator=agnostic``, :math:`\min_w \max_{\lambda \in \Lambda} \sum_k \lambda_k F_k(w)` over all
    weights that are not negative and add up to 1. There everybody trains and updates are weighted by :math:`\lambda`. Here the
    cohort is drawn by it, without replacement, so that the plain mean of updates follows the mixture; and a few clients tell
    their losses.

    1. m clients of those available, drawn uniformly, tell their loss :math:`F_k` of the model (``LocalLoss``).
    2. The cohort is drawn, each next client with probability :math:`\propto \lambda_k`. Where all who are left have weight 0,
       one of them is drawn uniformly.
    3. With :math:`\bar F` the mean of the m losses,

       .. math::
           \lambda \leftarrow \Pi_\Lambda(\lambda + \gamma g), \quad
           g_k = \frac{K - 1}{m - 1} (F_k - \bar F) \text{ for those asked, 0 for others,} \quad
           \lambda_k = 1 / K \text{ at first.}

    g is :math:`F_k` less the mean of all, in expectation, and the projection does not see what all have in common. With
    everybody asked, the weights are those of ``aggregator=agnostic``.

    Source: Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv:1902.00146, section 4.3: the stochastic gradients that
    draw one client by :math:`\lambda` for the model and one uniformly for the weights; as AFL in the thesis, table 4.

    Deviations: the paper draws one client and takes one step on it; here it is a cohort without replacement and each one's
    local training. The paper's g is K F_k of the client that was drawn; that without the mean is less noisy and leads the same
    way. The paper returns the average of all models, this the last one. Who is away is not asked, and keeps its weight but for
    the projection. A loss that is not finite does not count, and the log names who told it.

    A round costs O(K log K), and one pass of the samples of those asked through the model, which the ledger counts. These
    disclose a loss. ``aggregator=agnostic`` beside it would weight updates twice: take ``fedavg``.

    Args:
        local_loss: asked of m clients in every round.
        step: :math:`\gamma`, 0 or larger; 0 draws uniformly.
        asked: m, 2 or larger; ``None`` for as many as train, and 2 at least.
    """

    # AFL_M of the thesis' table 4.
    taxonomy = Taxonomy("good-intent fairness", "DSRT", ("θ", "loss"), "loss", "probability", "fixed rounds")

    local_loss: Query
    step: Annotated[float, Within("[0, 3.4e38]")] = 0.1
    asked: Annotated[int | None, Whole(2)] = None

    def init(self, facts: Facts) -> ServerState:
        """Return weights lambda, float64 of shape (K,), that are all alike."""
        return {"mixture": torch.full((facts.num_clients,), 1 / facts.num_clients, dtype=torch.float64)}

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return clients drawn by their weights, after some have told their losses."""
        number = min(self.asked or max(2, context.num_slots), len(context.available))
        context.ask(self.local_loss, streams.draw(context.rng, context.available, number))
        weights_K = server["mixture"].numpy()[list(context.available)]
        return [context.available[position] for position in drawn_order(weights_K, context.rng)[: context.num_slots].tolist()]

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Return the next weights."""
        # An aggregator may have asked others for their losses afterwards.
        answered = [one.client_id for one in result.disclosed if one.query == self.local_loss.name]
        answered = answered[: self.asked or max(2, len(result.cohort))]
        losses = {client_id: result.answers[self.local_loss.name][client_id] for client_id in answered}
        unusable = [client_id for client_id, loss in losses.items() if not math.isfinite(loss)]
        warn_of(result.round, "losses", unusable, len(losses), "clients are not finite and do not count")
        usable = [client_id for client_id in answered if client_id not in unusable]
        if len(usable) < 2 or not self.step:
            return server
        losses_M = torch.tensor([losses[client_id] for client_id in usable], dtype=torch.float64)
        ascent_K = torch.zeros_like(server["mixture"])
        ascent_K[usable] = (result.num_clients - 1) / (len(usable) - 1) * (losses_M - losses_M.mean())
        return {"mixture": nearest_of_simplex(server["mixture"] + self.step * ascent_K)}
