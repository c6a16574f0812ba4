"""Active federated learning: clients on whose data the model did badly when they were last asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from fedfacet import rng
from fedfacet.arguments import Number, Within
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, warn_of
from fedfacet.types import ClientUpdate, Facts, Query, SelectionContext, ServerState


@dataclass(eq=False, kw_only=True)
class ActiveFLSelector(ClientSelector):
    r"""Draw most of the cohort by a softmax of the clients' last known valuations, and the rest uniformly.

    1. Every member of a cohort reports its valuation :math:`v_k` of the model that it is sent. The server keeps the last one
       of each client; who has not reported yet has :math:`v_k = -\infty`.
    2. The :math:`\lfloor \alpha_1 K \rfloor` clients with the lowest valuations are excluded:
       :math:`v_k \leftarrow -\infty`.
    3. Of the m places, r are for uniform draws (``uniform_slots``). The other m - r are drawn without replacement, each next
       one with probability :math:`p_k \propto \exp(\alpha_2 v_k)` over those left.
    4. The r places, and those for which step 3 has too few clients, are drawn uniformly from all others, excluded ones too.

    K counts the clients that are available in the round. Ties in step 2 are broken by the round's draw.

    Source: Goetz et al., Active Federated Learning, arXiv:1909.12641, algorithm 1, as the thesis (table 4, AFL_G) describes it.
    Steps 2 to 4 were compared with the code of Facebook, where the method comes from (facebookresearch/FLSim,
    ``HighLossActiveUserSelector``), whose test has the probabilities that ours repeats. The defaults are those of two ports of
    the method; they were not checked against the paper.

    Deviations: FLSim rounds r down, and measures all clients before the first draw. Here r is rounded to the nearest whole
    number, and at least one place is drawn uniformly while a client that is available has not reported yet; with r rounded
    down, a cohort of nine would never explore. The thesis starts with :math:`v_k = -\infty` for everybody, of which a softmax
    is undefined; then step 4 draws the whole cohort. A valuation that is not finite counts as none, and the log names the
    client. The paper suggests noise on valuations; there is none here.

    A round costs O(K log K), and one pass of the cohort's samples through the model, which the ledger counts. A client
    discloses its valuation in every round for which it is selected.

    Args:
        valuation: asked of the cohort in every round.
        excluded_share: alpha_1 in [0, 1].
        sharpness: alpha_2, 0 or larger; 0 draws uniformly from those who are not excluded.
        uniform_share: alpha_3 in [0, 1].
    """

    # AFL_G of the thesis' table 4.
    taxonomy = Taxonomy("efficiency", "DSRT", ("θ", "loss"), "loss", "probability and exploration", "fixed rounds")

    valuation: Query
    excluded_share: Annotated[float, Within("[0, 1]")] = 0.75
    sharpness: Annotated[float, Number("0 or larger, and finite")] = 0.01
    uniform_share: Annotated[float, Within("[0, 1]")] = 0.1

    def init(self, facts: Facts) -> ServerState:
        """Return every client's last valuation, float64 of shape (K,): none so far."""
        return {"valuations": torch.full((facts.num_clients,), -torch.inf, dtype=torch.float64)}

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those drawn by valuation, then those drawn uniformly."""
        valuations_K = server["valuations"].numpy()[np.asarray(context.available)]
        known_K = valuations_K > -np.inf
        ascending = np.lexsort((context.rng.random(len(valuations_K)), valuations_K))
        # A share such as 0.29 of 100 comes to a little less than 29 in floating point.
        kept = ascending[math.floor(self.excluded_share * len(ascending) + 1e-9) :]
        eligible = np.sort(kept[known_K[kept]])
        by_valuation = context.num_slots - uniform_slots(self.uniform_share, context.num_slots, bool(known_K.all()))
        number = min(by_valuation, len(eligible))
        drawn = rng.draw(context.rng, eligible.tolist(), number, self.sharpness * valuations_K) if number else []
        others = sorted(set(range(len(valuations_K))) - set(drawn))
        drawn += rng.draw(context.rng, others, context.num_slots - number)
        cohort = [context.available[position] for position in drawn]
        context.ask(self.valuation, cohort)
        return cohort

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Keep the valuations of those whose updates arrived."""
        valuations_K = server["valuations"].clone()
        for receipt in result.receipts:
            valuations_K[receipt.client_id] = receipt.answers[self.valuation.name]
        unusable = [receipt.client_id for receipt in result.receipts if not valuations_K[receipt.client_id].isfinite()]
        if unusable:
            valuations_K[unusable] = -torch.inf
            warn_of(result.round, "valuations", unusable, len(result.receipts), "clients are not finite and count as none")
        return {"valuations": valuations_K}


def uniform_slots(share: float, num_slots: int, all_known: bool) -> int:
    r"""Return r, how many of a cohort's places are drawn uniformly.

    That is :math:`\alpha_3 m` rounded to the nearest whole number, halves up; at least 1 where somebody's valuation is not
    known.

    Example:
        >>> [uniform_slots(0.1, places, all_known=False) for places in (1, 9, 15, 24)]
        [1, 1, 2, 2]
        >>> [uniform_slots(0.1, places, all_known=True) for places in (1, 9, 15, 24)]
        [0, 1, 2, 2]
    """
    return max(math.floor(share * num_slots + 0.5), 0 if all_known else 1)
