"""How many samples of each class a client holds, for losses that depend on it."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.types import Batch


def class_counts(batches: Iterable[Batch]) -> Tensor:
    """Return the number of samples of each class, up to the largest class among them; float32."""
    return torch.bincount(torch.cat([batch.y for batch in batches])).float()


def for_all_classes(values: Tensor, logits: Tensor, *, absent: float) -> Tensor:
    """Return a value for each class of the ``logits`` (B, Y), shape (Y,); classes beyond ``values`` have that of ``absent``."""
    return functional.pad(values, (0, logits.shape[1] - len(values)), value=absent)
