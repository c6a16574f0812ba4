"""Probabilistic node selection: clients whose updates pull against the others' are drawn less often."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.arguments import Choice, Number
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, drawn_order, numbers
from fedfacet.types import ClientUpdate, Facts, SelectionContext, ServerState

_TIE = 1e-6


@dataclass(eq=False, kw_only=True)
class FedPNSSelector(ClientSelector):
    r"""Draw clients by probabilities that fall whenever a client's update turns out to hold the others back.

    A set S of updates is as well aligned as

    .. math:: f(S) = \sum_{i \in S} \langle g_i, \bar g_S \rangle = \frac{1}{|S|} \sum_{i,j \in S} \langle g_i, g_j \rangle,
        \quad \bar g_S = \frac{1}{|S|} \sum_{i \in S} g_i

    After a round, with S the updates that arrived, the client :math:`k = \arg\max_k f(S \setminus k)` is flagged and taken out
    of S if :math:`f(S \setminus k) > f(S)`, and so on until nobody's absence helps or one is left. Then, counting over the
    whole run how often each client's update arrived and how often it was flagged,

    .. math:: p_k \leftarrow p_k \left(1 - \min\left[\left(\frac{\text{flagged}_k}{\text{arrived}_k} + \beta\right)^\alpha,
        c\right]\right) \quad \text{for the clients just flagged},

    and what they lose is shared equally among all other clients of the population. It starts with :math:`p_k = 1/K`. The next
    cohort is drawn without replacement, each next one in proportion to p among the available clients left, uniformly where
    none of these has any probability.

    Only the products :math:`\langle g_i, g_j \rangle` are needed: m^2 d operations for m updates of d entries, and m^3 after
    that at most. FedDiverse's table 2 (thesis, table 14) says K^2 d^2, and table 1 has no result for 100 clients: its code goes
    about it in another way.

    Source: Wu and Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data, IEEE TNSE 2022,
    arXiv:2105.07066, algorithms 1 and 2, and the authors' code; thesis, section 5.5.4.

    Deviation: a flagged client's update stays in its round, as leaving it out is the aggregator's business. The loss on samples
    of the server confirms no flag, as the server has none. FedDiverse's code does neither as well. A gain below a millionth is
    rounding and none; ties go to the lowest client number. (The power above is the part that is lost, in the authors' code as
    in FedDiverse's; were it the part that is kept, those flagged most often would lose least.)

    Args:
        variant: ``"paper"``, FedDiverse's released code, whose constants its text lacks: g is the update as it is, any number
            may be flagged, c = 0.99; ``"original"``: g is the update per local step, at most a fifth of those who arrived
            (rounded up; 2 of 10) are flagged, and c = 1, which takes everything from a client flagged in three tenths of its
            rounds.
        penalty_exponent: alpha, larger than 0.
        penalty_offset: beta, 0 or larger.
    """

    taxonomy = Taxonomy("efficiency", "DSRT", ("θ",), "alignment of updates", "probability", "fixed rounds")

    variant: Annotated[str, Choice("paper", "original")] = "paper"
    penalty_exponent: Annotated[float, Number("larger than 0")] = 2.0
    penalty_offset: Annotated[float, Number("0 or larger")] = 0.7

    def init(self, facts: Facts) -> ServerState:
        """Return every client's probability, and how often its update has arrived and been flagged."""
        never = torch.zeros(facts.num_clients, dtype=torch.int64)
        probabilities = torch.full((facts.num_clients,), 1 / facts.num_clients, dtype=torch.float64)
        return {"probabilities": probabilities, "arrived": never, "flagged": never}

    def needs_updates(self, server: ServerState) -> bool:
        """Return ``True``."""
        return True

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return clients drawn without replacement by their probabilities."""
        available = numbers(context.available)
        weights = server["probabilities"].numpy()[available]
        return available[drawn_order(weights, context.rng, context.num_slots)].tolist()  # type: ignore[no-any-return]

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Flag clients and move probability from them to all others."""
        if not updates:
            return server
        updates = sorted(updates, key=lambda update: update.client_id)
        gram_MM = state.gram([update.delta for update in updates])
        limit = len(updates)
        if self.variant == "original":
            steps_M = np.array([update.num_steps for update in updates])
            gram_MM = gram_MM / np.outer(steps_M, steps_M)
            limit = -(-len(updates) // 5)
        ids = np.array([update.client_id for update in updates])
        just = ids[misaligned(gram_MM, limit)]

        p_K, arrived_K, flagged_K = (server[name].numpy().copy() for name in ("probabilities", "arrived", "flagged"))
        arrived_K[ids] += 1
        flagged_K[just] += 1
        powers = (flagged_K[just] / arrived_K[just] + self.penalty_offset) ** self.penalty_exponent
        lost = p_K[just] * np.minimum(powers, 0.99 if self.variant == "paper" else 1.0)
        others_K = np.ones(len(p_K), dtype=bool)
        others_K[just] = False
        p_K[just] -= lost
        p_K[others_K] += lost.sum() / others_K.sum()
        learnt = {"probabilities": p_K / p_K.sum(), "arrived": arrived_K, "flagged": flagged_K}
        return {name: torch.from_numpy(values) for name, values in learnt.items()}


def misaligned(gram_MM: NDArray[np.float64], limit: int) -> list[int]:
    """Return the positions of the vectors whose removal, one after another, raises the alignment of the rest.

    Args:
        gram_MM: the vectors' inner products, shape (M, M).
        limit: how many to remove at most; one vector stays in any case.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
        >>> misaligned(vectors @ vectors.T, limit=3)
        [2]
    """
    left = np.arange(len(gram_MM))
    removed: list[int] = []
    while len(left) > 1 and len(removed) < limit:
        inner = gram_MM[np.ix_(left, left)]  # summed anew each time, so that rounding does not pile up
        total = inner.sum()
        without = (total - 2 * inner.sum(axis=1) + inner.diagonal()) / (len(left) - 1)
        least = without.max() - _TIE * abs(without.max())
        if least <= total / len(left):
            break
        best = int(np.argmax(without >= least))
        removed.append(int(left[best]))
        left = np.delete(left, best)
    return removed
