"""Weights that are not negative and add up to 1."""

import torch
from torch import Tensor


def nearest_of_simplex(point: Tensor) -> Tensor:
    r"""Return weights that are not negative, add up to 1 and are nearest to ``point``.

    .. math:: \Pi(v) = \max(v - \tau, 0), \quad \tau \text{ such that } \sum_i \Pi(v)_i = 1

    Source: Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions, ICML 2008, figure 1.

    Args:
        point: shape (K,), finite.

    Example:
        >>> nearest_of_simplex(torch.tensor([0.5, 0.9, -1.0]))
        tensor([0.3000, 0.7000, 0.0000])
    """
    descending = point.sort(descending=True).values
    excess = descending.cumsum(0) - 1
    ranks = torch.arange(1, len(point) + 1, dtype=point.dtype)
    number = int((descending * ranks > excess).sum())
    return (point - excess[number - 1] / number).clamp(min=0)
