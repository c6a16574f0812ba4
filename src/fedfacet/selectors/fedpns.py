"""Probabilistic node selection: clients whose updates pull against the others' are drawn less often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.arguments import check_choice
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import ClientUpdate, RoundResult, SelectionContext

_TIE = 1e-6


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
    that at most. FedDiverse's table 2 (thesis, table 14) says K^2 d^2, and table 1 has no result for 100 clients, because of
    how its code goes about it.

    Source: Wu and Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data, IEEE TNSE 2022,
    arXiv:2105.07066, algorithms 1 and 2, and the authors' code; thesis, section 5.5.4.

    Deviation: nobody's update is left out of the round in which it was flagged, as that is the aggregator's business, nor is a
    flag confirmed by the loss on samples of the server, which has none; FedDiverse's code does neither as well. A gain below a
    millionth is rounding and none; ties go to the lowest client number. (The power above is the part that is lost, in the
    authors' code as in FedDiverse's; were it the part that is kept, those flagged most often would lose least.)

    Args:
        variant: ``"paper"``, FedDiverse's: g is the update as it is, any number may be flagged, c = 0.99; ``"original"``: g is
            the update per local step, at most a fifth of those who arrived (rounded up; 2 of 10) are flagged, and c = 1, which
            takes everything from a client flagged in three tenths of its rounds.
        penalty_exponent: alpha, larger than 0.
        penalty_offset: beta, 0 or larger.

    Raises:
        ValueError: if an argument is out of range.
    """

    needs_updates = True

    taxonomy = Taxonomy(
        policy="efficiency",
        client_characteristics="DSRT",
        shared_information=("θ",),
        value_generation="alignment of updates",
        value_interpretation="probability",
        termination_condition="fixed rounds",
    )

    def __init__(self, *, variant: str = "paper", penalty_exponent: float = 2.0, penalty_offset: float = 0.7) -> None:
        check_choice("variant", variant, ("paper", "original"))
        if not penalty_exponent > 0:
            raise ValueError(f"Expected `penalty_exponent` to be larger than 0, but got {penalty_exponent}.")
        if not penalty_offset >= 0:
            raise ValueError(f"Expected `penalty_offset` to be 0 or larger, but got {penalty_offset}.")
        self.variant = variant
        self.penalty_exponent = penalty_exponent
        self.penalty_offset = penalty_offset
        self._probabilities_K = np.zeros(0)  # of no length until the size of the population is known
        self._arrived_K = np.zeros(0, dtype=np.int64)
        self._flagged_K = np.zeros(0, dtype=np.int64)

    def select(self, context: SelectionContext) -> list[int]:
        """Return clients drawn without replacement by their probabilities."""
        available = np.asarray(context.available)
        weights = self._probabilities_K[available] if len(self._probabilities_K) else np.ones(len(available))
        # The first arrivals of Poisson processes with rates p_k are draws without replacement; p_k = 0 never arrives.
        with np.errstate(divide="ignore", over="ignore"):
            arrivals = context.rng.exponential(size=len(available)) / weights
        order = np.lexsort((context.rng.random(len(available)), arrivals))
        return available[order[: self.cohort_size(context)]].tolist()  # type: ignore[no-any-return]

    def observe(self, result: RoundResult, updates: Sequence[ClientUpdate]) -> None:
        """Flag clients and move probability from them to all others."""
        if not updates:
            return
        updates = sorted(updates, key=lambda update: update.client_id)
        gram_MM = state.gram([update.delta for update in updates])
        limit = len(updates)
        if self.variant == "original":
            steps_M = np.array([update.num_steps for update in updates])
            gram_MM = gram_MM / np.outer(steps_M, steps_M)
            limit = -(-len(updates) // 5)
        ids = np.array([update.client_id for update in updates])
        just = ids[misaligned(gram_MM, limit)]

        population = result.num_clients
        arrived_K, flagged_K = _padded(self._arrived_K, population), _padded(self._flagged_K, population)
        arrived_K[ids] += 1
        flagged_K[just] += 1
        p_K = self._probabilities_K.copy() if len(self._probabilities_K) else np.full(population, 1 / population)
        powers = (flagged_K[just] / arrived_K[just] + self.penalty_offset) ** self.penalty_exponent
        lost = p_K[just] * np.minimum(powers, 0.99 if self.variant == "paper" else 1.0)
        others_K = np.ones(population, dtype=bool)
        others_K[just] = False
        p_K[just] -= lost
        p_K[others_K] += lost.sum() / others_K.sum()
        self._probabilities_K = p_K / p_K.sum()
        self._arrived_K, self._flagged_K = arrived_K, flagged_K

    def state_dict(self) -> dict[str, Any]:
        """Return every client's probability, and how often its update has arrived and been flagged."""
        return {
            "probabilities": torch.from_numpy(self._probabilities_K.copy()),
            "arrived": torch.from_numpy(self._arrived_K.copy()),
            "flagged": torch.from_numpy(self._flagged_K.copy()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""
        self._probabilities_K = state_dict["probabilities"].numpy().copy()
        self._arrived_K = state_dict["arrived"].numpy().copy()
        self._flagged_K = state_dict["flagged"].numpy().copy()


def misaligned(gram_MM: NDArray[np.float64], limit: int) -> list[int]:
    """Return the positions of the vectors whose removal, one after another, raises the alignment of the rest.

    Args:
        gram_MM: the vectors' inner products, shape (M, M).
        limit: how many to remove at most; one vector stays in any case.

    Example:
        >>> import numpy as np
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


def _padded(counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.pad(counts, (0, length - len(counts)))
