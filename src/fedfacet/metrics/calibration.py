"""The expected calibration error."""

import numpy as np
import torch
from numpy.typing import NDArray
from torchmetrics.functional.classification import multiclass_calibration_error

_BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1. torchmetrics gives a confidence of exactly 1 a bin of its own."""


def calibration_error(logits: NDArray[np.float32], y: NDArray[np.int64], *, bins: int = 15) -> float:
    r"""Return how far confidence is from accuracy, over bins of samples that are about equally sure.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \, \lvert \mathrm{acc}_b - \mathrm{conf}_b \rvert

    A sample's confidence is its largest softmax probability. Of the samples whose confidence lies in the b-th of equally wide
    bins, :math:`[(b - 1) / B, \, b / B)` and the last one closed, there are :math:`n_b`, with the mean confidence
    :math:`\mathrm{conf}_b` and the accuracy :math:`\mathrm{acc}_b`. It is from 0 to 1, and NaN where there are no samples, or a
    logit is not finite. Few samples make it too large: even a model that is right about itself then misses in some bins.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599. Torchmetrics computes it, in
    single precision. Formula and 15 bins are those of the code of its second author (gpleiss/temperature_scaling, the class
    ``_ECELoss``), not checked against the paper. Deviation: there a bin has its upper end, and here its lower one.

    ``logits`` has the shape (n, Y), ``y`` the shape (n,), ``bins`` is B, 1 or larger.

    Example:
        >>> logits = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], dtype=np.float32))
        >>> round(calibration_error(logits, np.array([0, 1, 1])), 4)  # (2 * |0.5 - 0.9| + |1 - 0.6|) / 3
        0.4
    """
    if not len(y) or not np.isfinite(logits).all():
        return float("nan")
    probabilities = torch.as_tensor(logits, dtype=torch.float64).softmax(dim=1).float().clamp(max=_BELOW_ONE)
    return float(multiclass_calibration_error(probabilities, torch.as_tensor(y), logits.shape[1], n_bins=bins))
