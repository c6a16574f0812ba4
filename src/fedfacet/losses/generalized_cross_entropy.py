"""Generalised cross entropy, which learns the easy samples first."""

import torch
from torch import Tensor

from fedfacet.types import Batch


def generalized_cross_entropy(logits: Tensor, batch: Batch, *, q: float = 0.3) -> Tensor:
    r"""Return the batch mean of :math:`(1 - p_y^q) / q`, with p the softmax of the logits.

    For q -> 0 it becomes the cross entropy, for q = 1 the mean absolute error. Computed as ``-expm1(q * log p_y) / q``, so that
    value and gradient stay finite and exact for p_y -> 0 and for small q.

    Source: Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018, arXiv:1805.07836, equation 6. FedDiverse's
    equation 13 (thesis, 28) prints it without the index y and with a stray factor p.

    Args:
        logits: shape (B, Y).
        batch: its ``y`` of shape (B,) is read.
        q: in (0, 1].

    Raises:
        ValueError: if ``q`` is out of range.

    Example:
        >>> batch = Batch(torch.empty(1), torch.tensor([0]), torch.tensor([0]))
        >>> generalized_cross_entropy(torch.zeros(1, 2), batch, q=1.0)
        tensor(0.5000)
    """
    if not 0 < q <= 1:
        raise ValueError(f"Expected `q` in (0, 1], but got {q}.")
    log_p = torch.log_softmax(logits, dim=1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return (-torch.expm1(q * log_p) / q).mean()
