"""S-FedAvg: clients whose updates have helped are drawn more often, by their Shapley values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.arguments import Number, Whole, Within
from fedfacet.confusion import accuracy_of
from fedfacet.methods import shapley
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import ClientUpdate, Facts, SelectionContext, ServerState, State


@dataclass(eq=False, kw_only=True)
class SFedAvgSelector(ClientSelector):
    r"""Draw clients by a softmax of their relevance, which follows what their updates add to the accuracy.

    1. The cohort is drawn without replacement, each next client with probability
       :math:`P_k \propto \exp(\varphi_k / \tau)` over those available that are left.
    2. A round's updates are the players of a game. A coalition S is worth :math:`v(S)`, the accuracy on the server's samples
       of the model that was sent plus the plain mean of the updates of S; :math:`v(\emptyset)` is that of the model alone.
    3. With the Shapley values :math:`s_k` of the game (``fedfacet.methods.shapley``), whose sum is :math:`v(N) - v(\emptyset)`,

       .. math:: \varphi_k \leftarrow \alpha \varphi_k + \beta s_k \quad \text{for the clients whose updates arrived.}

    It starts with :math:`\varphi_k = 1 / K`. A client whose update adds nothing loses a part of its relevance, and one that is
    not selected none. The server needs samples of its own (``server_data=validation``); it need not know their attribute
    values. Floating-point buffers are averaged as parameters are.

    Source: Nagalapatti and Narayanam, Game of Gradients: Mitigating Irrelevant Clients in Federated Learning, AAAI 2021,
    arXiv:2110.12257, section "Computing Relevance Scores of Clients" and algorithms 1 and 2. The paper has alpha 0.75, beta
    0.25 and 5 of 10 clients a round.

    The paper's softmax has no temperature, which is ``temperature=1``. Accuracies lie in [0, 1], so that it hardly prefers
    anybody: after a first Shapley value of 0.5 one of ten clients is drawn with probability 0.109 instead of 0.1.

    Deviations: the temperature may be another. Up to ``exact_up_to`` updates values are exact; beyond that, ``permutations``
    orders are drawn and cut short by ``tolerance``. The paper draws 10 orders even of 5 updates, and cuts none. Its games have
    :math:`v(\emptyset) = 0` by convention, here that is the accuracy of the model that was sent. The mean of a coalition is a
    plain one, also where the aggregator weighs clients or does more than average.

    A round costs O(K log K) to select. To learn from m updates the server passes its samples through :math:`2^m` models, where
    values are exact, or through up to m times ``permutations``; ``server/samples`` counts them. Whole updates stay in memory
    until then. Clients are asked nothing. The server learns of each update what it does on the server's samples.

    Args:
        temperature: tau, larger than 0.
        retention: alpha in [0, 1]; 1 forgets nothing.
        gain: beta, larger than 0.
        exact_up_to: of how many updates Shapley values are exact, 0 or larger.
        permutations: how many orders are drawn for more updates, 1 or larger.
        tolerance: of accuracy, 0 or larger: from where on an order is cut short; 0 cuts none.
    """

    taxonomy = Taxonomy("efficiency", "DSRT", ("θ",), "Shapley value on the server's samples", "probability", "fixed rounds")

    temperature: Annotated[float, Number("larger than 0, and finite")] = 1.0
    retention: Annotated[float, Within("[0, 1]")] = 0.75
    gain: Annotated[float, Number("larger than 0, and finite")] = 0.25
    exact_up_to: Annotated[int, Whole(0)] = 6
    permutations: Annotated[int, Whole()] = 20
    tolerance: Annotated[float, Number("0 or larger, and finite")] = 0.005

    def init(self, facts: Facts) -> ServerState:
        """Return every client's relevance, float64 of shape (K,): alike so far."""
        return {"relevance": torch.full((facts.num_clients,), 1 / facts.num_clients, dtype=torch.float64)}

    def needs_updates(self, server: ServerState) -> bool:
        """Return ``True``."""
        return True

    def judges(self) -> str | None:
        """Return that classes matter, and groups do not."""
        return "classes"

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return clients drawn by their relevance."""
        return rng.draw(context.rng, context.available, context.num_slots, server["relevance"].numpy() / self.temperature)

    def observe(
        self,
        server: ServerState,
        result: RoundResult,
        updates: Sequence[ClientUpdate],
        rng: np.random.Generator,
        *,
        judge: Callable[[State], NDArray[np.int64]],
    ) -> ServerState:
        """Return the relevance after a round, in which clients without an update keep theirs."""
        if not updates:
            return server

        def accuracy(coalition: shapley.Coalition) -> float:
            change = state.weighted_mean((updates[i].delta | updates[i].buffers, 1.0) for i in coalition)
            return accuracy_of(judge(change))

        settings = {"exact_up_to": self.exact_up_to, "permutations": self.permutations}
        values = shapley.shapley_values(accuracy, len(updates), rng, tolerance=self.tolerance, **settings)
        clients = torch.tensor([update.client_id for update in updates])
        relevance_K = server["relevance"].clone()
        relevance_K[clients] = self.retention * relevance_K[clients] + self.gain * torch.from_numpy(values)
        return {"relevance": relevance_K}
