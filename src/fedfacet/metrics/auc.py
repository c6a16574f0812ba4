"""The area under the ROC curve."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata


def auc_of(logits: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    r"""Return the area under the ROC curve, one class against the rest, as a mean over the classes that samples have.

    .. math::
        \mathrm{AUC}_c = P(s_c(x) > s_c(x')) + \tfrac{1}{2} P(s_c(x) = s_c(x')), \quad s_c = \log \frac{p_c}{1 - p_c},

    for samples x of class c and x' of the others. Always naming the commonest class has 0.5, however skewed the classes are.
    The log-odds rank as the probabilities do, and do not round to 1 where a network is sure. With two classes this is the usual
    AUC. It is NaN where all samples are of one class, or a logit is not finite.

    ``logits`` has the shape (n, Y), ``y`` the shape (n,).

    Example:
        >>> logits = np.array([[2, 0], [1, 0], [0, 3], [0, -1]], dtype=np.float32)
        >>> auc_of(logits, np.array([0, 0, 1, 1]))
        0.875
    """
    classes = np.unique(y)
    if len(classes) < 2 or not np.isfinite(logits).all():
        return float("nan")
    ranks = rankdata(_log_odds(logits.astype(np.float64))[:, classes], axis=0)
    is_own = y[:, None] == classes
    num_own = is_own.sum(axis=0)
    pairs_won = (ranks * is_own).sum(axis=0) - num_own * (num_own + 1) / 2
    return float((pairs_won / (num_own * (len(y) - num_own))).mean())


def _log_odds(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z_c minus the logarithm of the sum over the others' exponentials, for each class of each sample.

    Only the largest class needs the sum of the others by itself: for any other class the sum over all, less its own, loses no
    digits that matter.
    """
    shifted = z - z.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    largest = np.arange(len(z)), z.argmax(axis=1)
    without_largest = shifted.copy()
    without_largest[largest] = -np.inf
    rest = exponentials.sum(axis=1, keepdims=True) - exponentials
    with np.errstate(divide="ignore"):
        log_rest = np.log(rest)
    log_rest[largest] = logsumexp(without_largest, axis=1)
    odds: NDArray[np.float64] = shifted - log_rest
    return odds
