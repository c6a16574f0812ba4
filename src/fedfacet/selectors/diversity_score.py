"""Diversity Score: clients with many, evenly held classes, and clients unlike the others, are drawn more often."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.special import entr

from fedfacet.arguments import check_choice, check_within
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import Query, SelectionContext, ServerState

ROUNDING = 1e-9  # scores, which lie in [0, 1], within a range this small are equal


@dataclass(eq=False, kw_only=True)
class DiversityScoreSelector(ClientSelector):
    r"""Draw clients without replacement, each next one in proportion to a score of its classes, the same in all rounds.

    With :math:`p_{ic}` the share of class c in client i's samples, N_c(i) the number of classes it has, C classes in all and K
    clients:

    .. math::
        D_i &= \lambda \frac{N_c(i)}{C} + (1 - \lambda) \frac{H(p_i)}{\log C} \\
        \overline{JS}_i &= \frac{1}{K - 1} \sum_{j \ne i} JS(p_i, p_j) \\
        S_i &= \alpha D_i + (1 - \alpha) \overline{JS}_i

    Scores are brought to [0, 1] by their minimum and maximum; ``floor`` is added, so that everybody can be drawn. Where all are
    equal, draws are uniform: so it is with divergences where every class has as many owners as any other, and every client as
    many classes (``partition=classes_per_client``). Logarithms are natural. Each client is asked for its histogram once, when
    it is first there; scores are those of all clients known.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.2.

    Deviation: the paper does not say how scores become a cohort; minimum, maximum and floor are those of its released code.
    That code also takes the distance, which is the square root of the divergence, and divides the means by the largest of them:
    ``jensen_shannon=distance`` and ``scaled=true``.

    Args:
        label_histogram: asked of every client, once.
        support_weight: :math:`\lambda` in [0, 1], of the number of classes against how evenly they are held.
        intra_weight: :math:`\alpha` in [0, 1], of a client's own diversity against how unlike the others it is.
        jensen_shannon: ``"divergence"`` (paper) or ``"distance"``.
        scaled: divide the mean divergences by the largest of them, so that they reach 1.
        floor: added to every score, larger than 0.
    """

    taxonomy = Taxonomy(
        "diversity", "DST", ("θ", "|D|", "label histogram"), "label distribution", "probability", "fixed rounds"
    )

    label_histogram: Query
    support_weight: float = 0.5
    intra_weight: float = 0.5
    jensen_shannon: str = "divergence"
    scaled: bool = False
    floor: float = 0.01

    def __post_init__(self) -> None:
        check_within("support_weight", self.support_weight, "[0, 1]")
        check_within("intra_weight", self.intra_weight, "[0, 1]")
        check_choice("jensen_shannon", self.jensen_shannon, ("divergence", "distance"))
        if not 0 < self.floor < math.inf:
            raise ValueError(f"Expected `floor` to be larger than 0 and finite, but got {self.floor}.")
        self._known: tuple[Mapping[int, Sequence[int]], dict[int, float]] = ({}, {})  # a memo, which changes no result

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the cohort of this round."""
        context.ask_once(self.label_histogram, context.available)
        scores = self._scores(context.disclosed[self.label_histogram.name])
        weights_K = np.array([scores[client_id] for client_id in context.available])
        shares_K = weights_K / weights_K.sum()
        return [int(k) for k in context.rng.choice(context.available, size=context.places, replace=False, p=shares_K)]

    def _scores(self, histograms: Mapping[int, Sequence[int]]) -> dict[int, float]:
        """Return the weights by which clients are drawn, found anew only when somebody has disclosed something."""
        if histograms != self._known[0]:
            clients = sorted(histograms)
            counts_KC = np.array([histograms[client_id] for client_id in clients], dtype=np.float64)
            shared = ("support_weight", "intra_weight", "jensen_shannon", "scaled")
            scores_K = diversity_scores(counts_KC, **{name: getattr(self, name) for name in shared})
            spread = float(np.ptp(scores_K))
            # Scores that differ by rounding alone are equal, as all are where each class has as many owners as any other.
            weights_K = (scores_K - scores_K.min()) / spread + self.floor if spread > ROUNDING else np.ones_like(scores_K)
            self._known = dict(histograms), dict(zip(clients, weights_K.tolist(), strict=True))
        return self._known[1]


def diversity_scores(
    counts_KC: NDArray[np.float64],
    *,
    support_weight: float = 0.5,
    intra_weight: float = 0.5,
    jensen_shannon: str = "divergence",
    scaled: bool = False,
) -> NDArray[np.float64]:
    """Return S_i of every client, shape (K,).

    ``counts_KC`` has its samples per class; a client without samples has the score 0 and is nobody's neighbour. The other
    arguments are as in ``DiversityScoreSelector``.

    Example:
        >>> diversity_scores(np.array([[5.0, 5.0], [8.0, 0.0]]), intra_weight=1.0).round(2).tolist()
        [1.0, 0.25]
    """
    scores_K = np.zeros(len(counts_KC))
    holds = counts_KC.sum(axis=1) > 0
    shares_KC = counts_KC[holds] / counts_KC[holds].sum(axis=1, keepdims=True)
    num_clients, num_classes = shares_KC.shape
    support_K = (shares_KC > 0).sum(axis=1) / num_classes
    evenness_K = entr(shares_KC).sum(axis=1) / (math.log(num_classes) if num_classes > 1 else 1.0)
    apart_K = np.zeros(num_clients)
    if intra_weight < 1 and num_clients > 1:
        for client, own in enumerate(shares_KC):
            # The square root of a difference of nearly equal sums may be that of a number a little below zero.
            distances = np.nan_to_num(jensenshannon(own[None], shares_KC, axis=1))
            apart_K[client] = np.delete(distances if jensen_shannon == "distance" else distances**2, client).mean()
        if scaled and apart_K.max() > 0:
            apart_K /= apart_K.max()
    own_K = support_weight * support_K + (1 - support_weight) * evenness_K
    scores_K[holds] = intra_weight * own_K + (1 - intra_weight) * apart_K
    return scores_K
