"""Cross entropy with a penalty on large logits, against shortcut features."""

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.types import Batch


def margin(logits: Tensor, batch: Batch, *, margin_weight: float = 0.01, penalty: str = "logits_per_sample") -> Tensor:
    r"""Return the cross entropy plus :math:`\lambda \log(1 + \lVert z \rVert_2^2)`, averaged over the batch.

    The cross entropy alone goes on widening the margin between logits z, which favours shortcut features; the penalty grows
    with the logits' length, and only logarithmically.

    Source: FedLD (Zeng et al., MICCAI 2024), equation 3, after Puli et al., arXiv:2308.12553.

    Args:
        logits: z, shape (B, Y).
        batch: its ``y`` of shape (B,) is read.
        margin_weight: lambda, 0 or larger; the paper's are 0.1, 0.03 and 0.03 for the splits 1, 2 and 3 of Retina, and 0.01
            for COVID-FL.
        penalty: ``"logits_per_sample"`` as above; ``"softmax_batch"`` as in the released code, whose penalty is
            :math:`\lambda \log(1 + \lVert P \rVert_F^2)` once a batch, with P the batch's softmax outputs, shape (B, Y). That
            one is not a mean over samples: it depends on the batch size.

    Raises:
        ValueError: if ``margin_weight`` is negative, or for another ``penalty``.

    Example:
        >>> batch = Batch(torch.empty(1), torch.tensor([0]), torch.tensor([0]))
        >>> margin(torch.tensor([[2.0, 1.0]]), batch, margin_weight=0.0)
        tensor(0.3133)
        >>> margin(torch.tensor([[2.0, 1.0]]), batch, margin_weight=1.0)  # 0.3133 + log(1 + 4 + 1)
        tensor(2.1050)
    """
    if not margin_weight >= 0:
        raise ValueError(f"Expected `margin_weight` to be 0 or larger, but got {margin_weight}.")
    if penalty == "logits_per_sample":
        length = torch.log1p(logits.square().sum(dim=1)).mean()
    elif penalty == "softmax_batch":
        length = torch.log1p(logits.softmax(dim=1).square().sum())
    else:
        raise ValueError(f"Expected `penalty` to be 'logits_per_sample' or 'softmax_batch', but got {penalty!r}.")
    return functional.cross_entropy(logits, batch.y) + margin_weight * length
