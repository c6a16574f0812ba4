"""Averaging that leaves out clients whose models are far less accurate than the best, and favours the most accurate."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.aggregators.base import Aggregator, judged_accuracy
from fedfacet.arguments import Within
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class RankTrimmed(Aggregator):
    r"""Weigh clients by the rank of their model's accuracy on samples of the server's, and leave outliers out.

    With the m accuracies sorted downwards, :math:`acc_1 \ge \ldots \ge acc_m`, client i is an outlier if
    :math:`acc_1 - acc_i > k (acc_1 - acc_m)`. With c the part of the clients that are none, and :math:`b = \rho c`, the
    client of rank i weighs :math:`Q(i / m) - Q((i - 1) / m)`, where

    .. math::
        Q(x) = \begin{cases}
            y_b \, x / b & 0 \le x \le b \\
            y_b + (1 - y_b) (x - b) / (c - b) & b < x \le c \\
            1 & c < x
        \end{cases}

    So the most accurate part :math:`\rho` of those who count have the part :math:`y_b` of the weight, and an outlier has none.
    The least accurate client is an outlier, unless all are alike.

    Source: the class ``IowaFederatedAggregator`` of the Sherpa.ai framework. Its authors are those of DDaBA
    (``aggregator=ddaba``), which replaced it; the induced ordered weighted averaging is Yager's.

    Deviations: the released code never finds an outlier, as it selects from a list by ``is True``, and hands the weights of
    ranks to clients in the order that these came in. Clients of equal accuracy share the weight of their ranks here, so that
    the order of updates does not matter; where all are alike that is an average. ``weighting=samples`` multiplies weights by
    :math:`n_k`; the rule's own is ``equal``.

    Args:
        outlier_share: k in (0, 1), of the largest difference of accuracies; larger values leave fewer clients out.
        best_share: rho in (0, 1), of those who count.
        best_weight: y_b in [0, 1].
    """

    outlier_share: Annotated[float, Within("(0, 1)")] = 0.75
    best_share: Annotated[float, Within("(0, 1)")] = 0.2
    best_weight: Annotated[float, Within("[0, 1]")] = 0.4

    def judges(self) -> str | None:
        """Return that classes matter, and groups do not."""
        return "classes"

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        arrived = list(updates)
        shares = rank_weights(
            [judged_accuracy(update) for update in arrived], self.outlier_share, self.best_share, self.best_weight
        )
        moved = state.weighted_mean(
            (self.sent(update), self.weight(update) * share)
            for update, share in zip(arrived, shares.tolist(), strict=True)
            if share > 0
        )
        return server, state.add(model, moved)


def rank_weights(
    accuracies: Sequence[float], outlier_share: float = 0.75, best_share: float = 0.2, best_weight: float = 0.4
) -> NDArray[np.float64]:
    """Return the weight of each client, in the order of their accuracies as given; they add up to 1, shape (m,).

    Args:
        accuracies: m of them, 1 or more.
        outlier_share: as for ``RankTrimmed``.
        best_share: as for ``RankTrimmed``.
        best_weight: as for ``RankTrimmed``.

    Example:
        >>> rank_weights([0.5, 0.9, 0.1, 0.8]).round(3).tolist()
        [0.25, 0.5, 0.0, 0.25]
    """
    gaps_M = max(accuracies) - np.asarray(accuracies, dtype=np.float64)
    counting = float((gaps_M <= outlier_share * gaps_M.max()).mean())
    edges = np.arange(len(gaps_M) + 1) / len(gaps_M)
    by_rank_M = np.diff(np.interp(edges, [0.0, best_share * counting, counting], [0.0, best_weight, 1.0]))
    _, places, sizes = np.unique(gaps_M, return_inverse=True, return_counts=True)
    shared = np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights=by_rank_M) / sizes
    weights: NDArray[np.float64] = np.where(gaps_M <= outlier_share * gaps_M.max(), shared[places.reshape(-1)], 0.0)
    return weights / weights.sum()  # type: ignore[no-any-return]
