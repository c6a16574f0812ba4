"""Pure functions of (logits, batch)."""

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.arguments import check_choice
from fedfacet.types import Batch


def generalized_cross_entropy(logits: Tensor, batch: Batch, *, q: float = 0.3) -> Tensor:
    r"""Return the batch mean of :math:`(1 - p_y^q) / q`, with p the softmax of the logits.

    For q -> 0 it becomes the cross entropy, for q = 1 the mean absolute error. Computed as ``-expm1(q * log p_y) / q``, so that
    value and gradient stay finite and exact for p_y -> 0 and for small q.

    Source: Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018, arXiv:1805.07836, equation 6; FedDiverse,
    equation 11. FedDiverse's algorithm 2 prints it without the index y, and the thesis' equation 28 with a stray factor p.

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


def group_penalty(logits: Tensor, batch: Batch, *, strength: float = 1.0, rate: str = "tpr", positive_class: int = 1) -> Tensor:
    r"""Return the cross entropy plus :math:`2 \lambda \sum_a (r_a - \bar r)^2`, with r_a a rate of the batch's group a.

    The mean :math:`\bar r` is over the groups that have a rate in the batch. For two groups the penalty is
    :math:`\lambda (r_1 - r_0)^2`; where fewer than two have one it is 0. With p the probability of ``positive_class``, r_a is

    - ``"tpr"``: the mean of p over the samples of ``positive_class`` in group a (equal opportunity),
    - ``"selection"``: the mean of p over all samples of group a (demographic parity),
    - ``"loss"``: their mean cross entropy.

    Source: the regulariser of Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447 (after Kamishima et al.'s
    prejudice remover), among the local methods of the thesis, section 6.3. Deviation: Abay et al. penalise mutual information,
    this is the squared difference of rates, as in later work. The defaults were not checked against the paper.

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
