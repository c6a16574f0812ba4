"""Diversity Score: clients with many, evenly held classes, and clients unlike the others, are drawn more often."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.special import entr

from fedfacet.arguments import Choice, Number, Within
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import Query, SelectionContext, ServerState

PAIRS_UP_TO = 1000  # clients; of more the mean divergences are found without looking at each pair

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
    ``jensen_shannon=distance`` and ``scaled=true``. With distances the first selection looks at all pairs of clients; with
    divergences no longer, where there are more than 1,000.

    Args:
        label_histogram: asked of every client, once.
        support_weight: :math:`\lambda` in [0, 1], of the number of classes against how evenly they are held.
        intra_weight: :math:`\alpha` in [0, 1], of a client's own diversity against how unlike the others it is.
        jensen_shannon: ``"divergence"`` (paper) or ``"distance"``.
        scaled: divide the mean divergences by the largest of them, so that they reach 1.
        floor: added to every score, larger than 0.
    """

    taxonomy = Taxonomy(
        "diversity", "DRT", ("θ", "|D|", "label histogram"), "label distribution", "probability", "fixed rounds"
    )

    label_histogram: Query
    support_weight: Annotated[float, Within("[0, 1]")] = 0.5
    intra_weight: Annotated[float, Within("[0, 1]")] = 0.5
    jensen_shannon: Annotated[str, Choice("divergence", "distance")] = "divergence"
    scaled: bool = False
    floor: Annotated[float, Number("larger than 0 and finite")] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: tuple[Mapping[int, Sequence[int]], dict[int, float]] = ({}, {})  # a memo, which changes no result

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the cohort of this round."""
        context.ask_once(self.label_histogram, context.available)
        scores = self._scores(context.disclosed[self.label_histogram.name])
        weights_K = np.array([scores[client_id] for client_id in context.available])
        shares_K = weights_K / weights_K.sum()
        return [int(k) for k in context.rng.choice(context.available, size=context.num_slots, replace=False, p=shares_K)]

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
        apart_K = _apart(shares_KC, jensen_shannon)
        if scaled and apart_K.max() > 0:
            apart_K /= apart_K.max()
    own_K = support_weight * support_K + (1 - support_weight) * evenness_K
    scores_K[holds] = intra_weight * own_K + (1 - intra_weight) * apart_K
    return scores_K


def _apart(shares_KC: NDArray[np.float64], jensen_shannon: str) -> NDArray[np.float64]:
    """Return each client's mean divergence from the others, or distance, shape (K,)."""
    if jensen_shannon == "divergence" and len(shares_KC) > PAIRS_UP_TO:
        return _mean_divergences(shares_KC)
    apart_K = np.zeros(len(shares_KC))
    for client, own in enumerate(shares_KC):
        # The square root of a difference of nearly equal sums may be that of a number a little below zero.
        distances = np.nan_to_num(jensenshannon(own[None], shares_KC, axis=1))
        apart_K[client] = np.delete(distances if jensen_shannon == "distance" else distances**2, client).mean()
    return apart_K


def _mean_divergences(shares_KC: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return each client's mean divergence from the others in :math:`O(C K \log K)`, but for rounding.

    A divergence is a sum over classes of :math:`\frac{1}{2} (x \log x + y \log y - s \log s) + \frac{\log 2}{2} s` with the
    shares x and y of two clients and :math:`s = x + y`, so that only the sums of :math:`s \log s` are of pairs.
    """
    apart_K = np.zeros(len(shares_KC))
    for share_K in shares_KC.T:
        of_each_K = -entr(share_K)
        pairs_K = len(share_K) * of_each_K + of_each_K.sum() - _sums_of_s_log_s(share_K)
        apart_K += (pairs_K + math.log(2) * (len(share_K) * share_K + share_K.sum())) / 2
    return np.maximum(apart_K, 0.0) / (len(shares_KC) - 1)


_RATIO, _TERMS = 1.25, 18


def _sums_of_s_log_s(share_K: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return :math:`\sum_j s \log s` with :math:`s = x_i + x_j` for every client i.

    The clients j are put into bins :math:`[b, 1.25 b)`. Around a bin's middle m the summand is a series in :math:`d = x_j - m`:

    .. math::
        s \log s = t \log t + (\log t + 1) d + \sum_{k \ge 2} \frac{(-d)^k}{k (k - 1) t^{k - 1}}, \qquad t = x_i + m

    As :math:`|d| \le t / 9`, what is left out after 18 terms is less than the rounding of one number, and a bin's part in all
    sums hangs on the sums of its powers of d alone.
    """
    x_V, clients = np.unique(share_K, return_inverse=True)
    sums_V = -np.count_nonzero(share_K == 0) * entr(x_V)
    owned = share_K[share_K > 0]
    bins = np.floor(np.log(owned / owned.min(initial=1.0)) / math.log(_RATIO))
    for number in np.unique(bins):
        inside = owned[bins == number]
        middle = (inside.min() + inside.max()) / 2
        off = inside - middle
        t_V = x_V + middle
        series_V = np.zeros_like(x_V)
        for k in range(_TERMS, 1, -1):
            series_V = (series_V + np.sum((-off) ** k) / (k * (k - 1))) / t_V
        sums_V += len(inside) * t_V * np.log(t_V) + (np.log(t_V) + 1) * off.sum() + series_V
    return np.asarray(sums_V[clients])
