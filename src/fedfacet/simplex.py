"""Weights that are not negative and add up to 1."""

import torch
from torch import Tensor

_FAR = 1e12


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
    if point.abs().max() > _FAR:
        point = point - point.max()  # a constant that all have in common changes nothing, and it would swallow the 1
    descending = point.sort(descending=True).values
    excess = descending.cumsum(0) - 1
    ranks = torch.arange(1, len(point) + 1, dtype=point.dtype)
    number = int((descending * ranks > excess).sum())
    return (point - excess[number - 1] / number).clamp(min=0)


def ascended(weights: Tensor, step: float, losses: Tensor, answered: Tensor) -> Tensor:
    r"""Return weights after a step towards the large losses, of which some are not known.

    .. math:: \Pi(\lambda + \gamma g), \quad g_k = \ell_k - \bar \ell \text{ if k has answered, else 0}

    with :math:`\bar \ell` the mean loss of those that have answered. The projection does not see a constant that all have in
    common, so with all losses known these are the weights of :math:`\Pi(\lambda + \gamma \ell)`, and that is computed. A loss
    that is not known neither raises nor lowers a weight before the projection; a single known loss moves nothing.

    Args:
        weights: shape (K,), not negative, adding up to 1.
        step: gamma.
        losses: shape (K,), finite where ``answered``.
        answered: bool, shape (K,).

    Example:
        >>> half = torch.tensor([0.5, 0.5])
        >>> ascended(half, 0.1, torch.tensor([2.0, 0.0]), torch.tensor([True, False]))
        tensor([0.5000, 0.5000])
    """
    if not answered.all():
        losses = torch.where(answered, losses - losses[answered].mean(), 0.0)
    return nearest_of_simplex(weights + step * losses)
