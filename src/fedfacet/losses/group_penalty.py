"""Cross entropy with a penalty on groups that are treated unequally."""

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.arguments import check_choice
from fedfacet.types import Batch


def group_penalty(logits: Tensor, batch: Batch, *, strength: float = 1.0, rate: str = "tpr", positive_class: int = 1) -> Tensor:
    r"""Return the cross entropy plus :math:`2 \lambda \sum_a (r_a - \bar r)^2`, with r_a a rate of the batch's group a.

    The mean :math:`\bar r` is over the groups that have a rate in the batch. For two groups the penalty is
    :math:`\lambda (r_1 - r_0)^2`; where fewer than two have one it is 0. With p the probability of ``positive_class``, r_a is

    - ``"tpr"``: the mean of p over the samples of ``positive_class`` in group a (equal opportunity),
    - ``"selection"``: the mean of p over all samples of group a (demographic parity),
    - ``"loss"``: their mean cross entropy.

    Source: the regulariser of Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447 (after Kamishima et al.'s
    prejudice remover), among the local methods of the thesis, section 6.3. Deviation: Abay et al. penalise mutual information,
    this is the squared difference of rates, as in later work; defaults not checked.

    Args:
        logits: z, shape (B, Y).
        batch: its ``y`` and ``a`` of shape (B,) are read.
        strength: lambda, 0 or larger; 0 is the cross entropy.
        rate: ``"tpr"``, ``"selection"`` or ``"loss"``.
        positive_class: whose probability counts, in 0 .. Y - 1.

    Raises:
        ValueError: if ``strength`` is negative, for another ``rate``, or if there is no such class.

    Example:
        >>> batch = Batch(torch.empty(2), torch.tensor([1, 1]), torch.tensor([0, 1]))
        >>> even = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
        >>> group_penalty(even, batch) == functional.cross_entropy(even, batch.y)
        tensor(True)
    """
    if not strength >= 0:
        raise ValueError(f"Expected `loss.strength` to be 0 or larger, but got {strength}.")
    check_choice("loss.rate", rate, ("tpr", "selection", "loss"))
    if not 0 <= positive_class < logits.shape[1]:
        raise ValueError(
            f"Expected `loss.positive_class` to be one of the {logits.shape[1]} classes, from 0, but got {positive_class}."
        )
    if strength == 0:
        return functional.cross_entropy(logits, batch.y)
    losses = functional.cross_entropy(logits, batch.y, reduction="none")
    counts = torch.ones_like(losses)
    if rate == "tpr":
        counts = (batch.y == positive_class).to(losses.dtype)
    value = losses if rate == "loss" else logits.softmax(dim=1)[:, positive_class]
    # All pairs of samples rather than a loop over groups: shapes are then the same for every batch, and can be stacked.
    together = (batch.a[:, None] == batch.a[None, :]).to(losses.dtype) * counts
    sizes = together.sum(dim=1).clamp(min=1)
    rates = (together * value).sum(dim=1) / sizes
    shares = counts / sizes  # of each sample in its group's rate; they add up to the number of groups
    mean = (shares * rates).sum() / shares.sum().clamp(min=1)
    return losses.mean() + 2 * strength * (shares * (rates - mean).square()).sum()


group_penalty.reads_attributes = True  # type: ignore[attr-defined]
group_penalty.compares_samples = True  # type: ignore[attr-defined]
