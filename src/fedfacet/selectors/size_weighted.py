"""Selection in proportion to how much data clients have."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Choice
from fedfacet.selectors.base import ClientSelector, Taxonomy, drawn_order
from fedfacet.types import Query, SelectionContext, ServerState


@dataclass(eq=False, kw_only=True)
class SizeWeightedSelector(ClientSelector):
    r"""Draw clients without replacement, in proportion to their numbers of samples :math:`n_k`.

    With the m places of a cohort, ``scheme="systematic"`` selects client k with the probability

    .. math:: \pi_k = \min(1, c \, n_k), \quad \sum_k \pi_k = m,

    exactly, over the clients that are available. They are put in a random order and stand on a line of length m, each on a
    piece of length :math:`\pi_k`. A point is drawn between 0 and 1; it and the points at distances 1, 2, ... from it pick the
    cohort (Madow, On the Theory of Systematic Sampling, II, Annals of Mathematical Statistics 1949).
    ``scheme="successive"`` draws one client after another with probability :math:`n_k / \sum_j n_j` over those left, as
    power-of-choice draws its candidates; then large clients are selected less often than :math:`\pi_k` says.

    Where no client has more than one m-th of all samples, the systematic scheme and ``aggregator.weighting=equal`` give an
    update whose expectation is :math:`\sum_k p_k \Delta_k` with :math:`p_k = n_k / \sum_j n_j`, what full participation gives.
    That is the expectation of scheme I of FedAvg's theory (Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020,
    arXiv:1907.02189), which draws with replacement by :math:`p_k` and takes the plain mean. Scheme II there is
    ``selector=uniform``: it draws uniformly without replacement, and weights by :math:`n_k`. With
    ``aggregator.weighting=samples`` the number of samples counts twice here.

    Source: EqW of the thesis' table 4, after Németh et al., A Snapshot of the Frontiers of Client Selection in Federated
    Learning, TMLR 2022.

    Deviations: the probability :math:`n_k / n` (the thesis' appendix A.1) adds up to 1 over the clients, so that it is an
    inclusion probability for a cohort of one alone; :math:`\pi_k` is that for one place and m times that for m, up to 1.
    Cohorts are of distinct clients, unlike those of scheme I. Clients without samples join, uniformly, only where too few
    others are available.

    A round costs O(K log K). A client discloses its number of samples, once.

    Args:
        num_samples: asked of every client, once.
        scheme: ``"systematic"`` or ``"successive"``.
    """

    taxonomy = Taxonomy("selection fairness", "VDRT", ("θ", "|D|"), "-", "probability", "-")  # EqW of the thesis' table 4

    num_samples: Query
    scheme: Annotated[str, Choice("systematic", "successive")] = "systematic"

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the clients drawn, in random order."""
        answers = context.ask_once(self.num_samples, context.available)
        sizes_K = np.array([answers[client_id] for client_id in context.available], dtype=np.float64)
        if self.scheme == "successive":
            drawn = drawn_order(sizes_K, context.rng, context.num_slots)
        else:
            drawn = systematic_sample(inclusion_probabilities(sizes_K, context.num_slots), context.rng)
        return [context.available[position] for position in drawn]


def inclusion_probabilities(sizes_K: NDArray[np.float64], num_slots: int) -> NDArray[np.float64]:
    r"""Return :math:`\pi_k = \min(1, c \, n_k)` with the c for which they add up to ``places``, shape (K,).

    Where no more than ``places`` clients have any samples, each of these has probability 1, and the others share the places
    left equally.

    Args:
        sizes_K: n_k, 0 or larger, shape (K,).
        num_slots: at most K.

    Example:
        >>> inclusion_probabilities(np.array([10.0, 1.0, 2.0, 3.0]), 2).round(3).tolist()
        [1.0, 0.167, 0.333, 0.5]
    """
    holders = sizes_K > 0
    if (number := int(holders.sum())) <= num_slots:
        return np.where(holders, 1.0, (num_slots - number) / max(len(sizes_K) - number, 1))
    descending = np.sort(sizes_K)[::-1]
    # With the i largest certain, the others share places - i by size; the first i for which none of these comes to 1 is right.
    left = descending[::-1].cumsum()[::-1]
    certain = int(np.argmax(descending * (num_slots - np.arange(len(descending))) < left))
    probabilities: NDArray[np.float64] = np.minimum(1.0, sizes_K * ((num_slots - certain) / left[certain]))
    return probabilities


def systematic_sample(probabilities_K: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return positions, each drawn with its probability, distinct and as many as the probabilities add up to.

    Args:
        probabilities_K: in [0, 1], with a whole number as sum, shape (K,).
        rng: draws an order and a point.
    """
    order = rng.permutation(len(probabilities_K))
    # Those that are certain are taken at once, or rounding could have one be picked twice and another not at all.
    certain = probabilities_K[order] > 1 - 1e-9
    others = order[~certain]
    number = round(float(probabilities_K[others].sum()))
    ends = probabilities_K[others].cumsum()
    points = (rng.random() + np.arange(number)) / max(number, 1) * ends[-1:].sum()
    picked = np.minimum(np.searchsorted(ends, points, side="right"), len(others) - 1)
    return np.concatenate([order[certain], others[picked]])
