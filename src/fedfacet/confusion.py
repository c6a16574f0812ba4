"""Counts of samples by class, attribute value and predicted class."""

import math

import numpy as np
from numpy.typing import NDArray


def accuracy_of(counts_YAY: NDArray[np.int64]) -> float:
    """Return the part of the samples whose class was predicted; NaN where there are none.

    Example:
        >>> accuracy_of(np.array([[[3, 1]], [[0, 4]]]))
        0.875
    """
    total = counts_YAY.sum()
    return float(np.einsum("yay->", counts_YAY) / total) if total else math.nan
