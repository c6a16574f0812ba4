"""DDaBA: averaging without the clients whose models are unusually inaccurate, with the most accurate counted twice."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.aggregators.base import Aggregator, judged_accuracy
from fedfacet.types import ClientUpdate, ServerState, State

_FIRST_DECILE = math.log(10 / 9)
_UPPER_FENCE = math.log(4) + 1.5 * math.log(3)
"""Of an exponential distribution with mean 1: a tenth lies below the one, and the other is Q3 + 1.5 (Q3 - Q1)."""


@dataclass(eq=False, kw_only=True)
class DDaBA(Aggregator):
    r"""Weigh clients by how far their model's accuracy is below the best, on samples of the server.

    The gaps to the best of the m accuracies, :math:`g_i = \max_j acc_j - acc_i`, count as exponential with their mean
    :math:`\bar g`. A client of an unusual gap gets no weight, and a client near the best counts twice:

    .. math::
        v_i = \begin{cases}
            2 & g_i < \bar g \ln \frac{10}{9} \\
            0 & g_i > \bar g \, (\ln 4 + 1.5 \ln 3) \\
            1 & \text{else}
        \end{cases}, \qquad
        w \leftarrow w + \frac{\sum_i v_i \Delta_i}{\sum_i v_i}

    The first bound is the first decile of the distribution. The second is its third quartile plus 1.5 times its interquartile
    range, about 3.03 times the mean gap. If all accuracies are equal, all clients weigh the same.

    The source has the equal form of an induced ordered weighted average: client i of m, by accuracy, weighs
    :math:`Q(i / m) - Q((i - 1) / m)`, with Q linear from 0 to :math:`y_b` on [0, b], from :math:`y_b` to 1 on [b, c], and 1
    beyond. There b is the share of clients below the first bound, 1 - c the share above the second, and
    :math:`y_b = 2 b / (b + c)`.

    Source: Rodríguez-Barroso, Martínez-Cámara, Luzón and Herrera, Dynamic defense against byzantine poisoning attacks in
    federated learning, Future Generation Computer Systems 133, 2022, arXiv:2007.15030. It is the class ``DDaBA`` of the
    authors' released code for the Sherpa.ai framework. It was not compared with the paper's text.

    Deviations: the released code divides by 0 if all accuracies are equal. Its copy for Flower sorts losses downwards, so that
    the worst model is its best one; accuracies count here. ``weighting=samples`` multiplies weights by :math:`n_k`; the rule's
    own is ``equal``.
    """

    def judges(self) -> str | None:
        """Return that classes matter, and groups do not."""
        return "classes"

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        arrived = list(updates)
        shares = gap_weights([judged_accuracy(update) for update in arrived])
        moved = state.weighted_mean(
            (self.sent(update), self.weight(update) * share)
            for update, share in zip(arrived, shares.tolist(), strict=True)
            if share > 0
        )
        return server, state.add(model, moved)


def gap_weights(accuracies: Sequence[float]) -> NDArray[np.float64]:
    """Return the weight of each client, in the order of their accuracies as given; they add up to 1, shape (m,).

    Args:
        accuracies: m of them, 1 or more.

    Example:
        >>> gap_weights([0.9, 0.8, 0.8, 0.7]).round(3).tolist()
        [0.4, 0.2, 0.2, 0.2]
    """
    gaps_M = max(accuracies) - np.asarray(accuracies, dtype=np.float64)
    mean = gaps_M.mean()
    # `<=`, so that equal accuracies, with gaps and a mean of 0, count alike; else no gap is an irrational part of the mean.
    values_M = np.where(gaps_M <= mean * _FIRST_DECILE, 2.0, np.where(gaps_M > mean * _UPPER_FENCE, 0.0, 1.0))
    weights: NDArray[np.float64] = values_M / values_M.sum()
    return weights
