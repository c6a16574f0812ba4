"""The area under the ROC curve."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score


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
    z = logits.astype(np.float64)
    odds = [z[:, c] - logsumexp(np.delete(z, c, axis=1), axis=1) for c in classes]
    return float(np.mean([roc_auc_score(y == c, s_c) for c, s_c in zip(classes, odds, strict=True)]))
