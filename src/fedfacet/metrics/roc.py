"""How well scores tell members from others: the ROC curve, the area under it with its interval, and its ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_curve

LEVEL = 0.95
_Z = float(norm.ppf((1 + LEVEL) / 2))


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The curve of n members and m others, whose scores are higher where an attack takes a sample for a member.

    Attributes:
        false_positives: rates in [0, 1], ascending, one per threshold.
        true_positives: rates in [0, 1], ascending.
        num_members: n.
        num_others: m.
        auc: in [0, 1]; the chance that a member's score is higher than another's, ties counting one half.
        std: DeLong's standard deviation of the AUC; 0 for a perfect order, and where all scores are equal.
        auc_low: lower end of the 95 % interval, which is wider than 0.
        auc_high: upper end.
    """

    false_positives: NDArray[np.float64]
    true_positives: NDArray[np.float64]
    num_members: int
    num_others: int
    auc: float
    std: float
    auc_low: float
    auc_high: float

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positive rate, in [0, 1]."""
        return float((self.true_positives - self.false_positives).max())

    @property
    def null_advantage(self) -> float:
        r"""The mean ``advantage`` of an attack that knows nothing, where scores have no ties.

        It is the mean of the one-sided statistic of Smirnov. For n = m it is j/n or more in :math:`\binom{2n}{n+j}` orders
        (Gnedenko and Korolyuk, 1951). So the mean is

        .. math:: \frac{1}{2n} \left( 4^n \binom{2n}{n}^{-1} - 1 \right) \approx \frac{\sqrt{\pi n} - 1}{2n}.

        Where n and m differ, n is their harmonic mean, an approximation.
        """
        n = 2 * self.num_members * self.num_others / (self.num_members + self.num_others)
        return (math.exp(2 * n * math.log(2) + 2 * math.lgamma(n + 1) - math.lgamma(2 * n + 1)) - 1) / (2 * n)

    @property
    def null_std(self) -> float:
        """The standard deviation of the AUC of an attack that knows nothing, where scores have no ties."""
        n, m = self.num_members, self.num_others
        return math.sqrt((n + m + 1) / (12 * n * m))

    @property
    def p_null(self) -> float:
        """The two-sided p-value of this AUC for an attack that knows nothing, by the normal approximation.

        Ties make it too large: such scores vary less than ``null_std``.
        """
        return float(2 * norm.sf(abs(self.auc - 0.5) / self.null_std))

    def true_positives_at(self, rate: float) -> float:
        """Return the largest true positive rate with a false positive rate of at most ``rate``.

        It is NaN where not even one false positive is allowed, because so few others cannot show it.
        """
        if rate * self.num_others < 1:
            return math.nan
        return float(self.true_positives[self.false_positives <= rate].max())


def roc_of(members: Sequence[float] | NDArray[np.float64], others: Sequence[float] | NDArray[np.float64]) -> Roc:
    r"""Return the curve of some scores.

    The variance is that of DeLong et al. (Biometrics 44, 1988), by ranks as in Sun and Xu (IEEE Signal Processing Letters 21,
    2014): with R the ranks among all scores and R' those among one's own kind, ties sharing their mean,

    .. math::
        V_i = \frac{R(x_i) - R'(x_i)}{m}, \quad W_j = 1 - \frac{R(y_j) - R'(y_j)}{n}, \quad
        \mathrm{AUC} = \bar{V}, \quad \sigma^2 = \frac{\operatorname{var} V}{n} + \frac{\operatorname{var} W}{m}.

    The interval is :math:`\operatorname{logit} \mathrm{AUC} \pm 1.96 \, \sigma / (\mathrm{AUC} (1 - \mathrm{AUC}))` on the
    logit scale (Pepe, The Statistical Evaluation of Medical Tests, 2003). A perfect order has no variance. All of its
    :math:`k = \min(n, m)` disjoint pairs are ordered, which has the chance :math:`\mathrm{AUC}^k`. So the exact one-sided
    bound is :math:`b = 0.05^{1/k}`: the interval is [b, 1]. It is [b/2, 1 - b/2] where all scores are equal.

    Args:
        members: scores of n members, 2 or more, finite.
        others: scores of m others, 2 or more, finite.

    Raises:
        ValueError: if there are fewer, or a score is not finite.

    Example:
        >>> roc = roc_of([3, 2, 2], [1, 2])
        >>> round(roc.auc, 4), round(roc.advantage, 4)
        (0.8333, 0.5)
    """
    x, y = np.asarray(members, np.float64), np.asarray(others, np.float64)
    n, m = len(x), len(y)
    if min(n, m) < 2:
        raise ValueError(f"Expected scores of two members and two others or more, but got {n} and {m}: attack more samples.")
    if bad := sum(int((~np.isfinite(scores)).sum()) for scores in (x, y)):
        raise ValueError(f"Expected finite scores, but {bad} of {n + m} are not: see whether the model's logits are finite.")
    ranks = rankdata(np.concatenate([x, y]))
    v = (ranks[:n] - rankdata(x)) / m
    w = 1 - (ranks[n:] - rankdata(y)) / n
    auc = float(v.mean())
    std = math.sqrt(v.var(ddof=1) / n + w.var(ddof=1) / m)
    if std:
        low, high = expit(logit(auc) + np.array([-1, 1]) * _Z * std / (auc * (1 - auc)))
    else:
        bound = (1 - LEVEL) ** (1 / min(n, m))
        low, high = auc * bound, 1 - (1 - auc) * bound
    false_positives, true_positives, _ = roc_curve(np.repeat([1, 0], [n, m]), np.concatenate([x, y]), drop_intermediate=False)
    return Roc(false_positives, true_positives, n, m, auc, std, float(low), float(high))


def pooled_auc(rocs: Sequence[Roc], *, shared_others: bool = False) -> tuple[float, float, float]:
    r"""Return the AUC over several models, of comparisons within each, and its 95 % interval.

    That is :math:`\sum_k U_k / \sum_k n_k m_k`, with U the pairs of a member and another that are ordered rightly.
    The interval takes the models' AUCs for independent of each other; with ``shared_others``, where all are compared with the
    same test set, for as dependent as can be, which makes it wider than it need be.
    """
    weights = pair_weights(rocs)
    reach = np.array([_Z * roc.std if roc.std else max(roc.auc - roc.auc_low, roc.auc_high - roc.auc) for roc in rocs])
    auc, spread = float(weights @ [roc.auc for roc in rocs]), float(np.linalg.norm(weights * reach, 1 if shared_others else 2))
    return auc, max(0.0, auc - spread), min(1.0, auc + spread)


def pair_weights(rocs: Sequence[Roc]) -> NDArray[np.float64]:
    """Return how much each model counts in the AUC over all: its share of pairs."""
    pairs = np.array([roc.num_members * roc.num_others for roc in rocs], dtype=np.float64)
    weights: NDArray[np.float64] = pairs / pairs.sum()
    return weights
