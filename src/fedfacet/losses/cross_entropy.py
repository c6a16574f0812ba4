"""Cross entropy."""

from torch import Tensor
from torch.nn import functional

from fedfacet.types import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the batch of -log p_y, with p the softmax of ``logits`` (shape (B, Y))."""
    return functional.cross_entropy(logits, batch.y)
