"""Group metrics for any Lightning project, as torchmetrics classes with states that add up."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fedfacet.metrics.group_counts import count_groups


class GroupMetric(Metric):
    """Counts ``correct`` and ``total`` per (class, attribute) group, shape (Y * A,) in the order g = y * num_attributes + a.

    ``num_classes`` (Y) and ``num_attributes`` (A) are 1 or larger (or ``ValueError``); others are ``torchmetrics.Metric``'s.
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound, plot_upper_bound = 0.0, 1.0
    full_state_update = False
    correct: Tensor
    total: Tensor

    def __init__(self, num_classes: int, num_attributes: int, **kwargs: Any) -> None:
        # A cached value would outlive `update_counts` and `merge_state`, which torchmetrics does not watch.
        super().__init__(**{"compute_with_cache": False} | kwargs)
        for name, value in (("num_classes", num_classes), ("num_attributes", num_attributes)):
            if value < 1:
                raise ValueError(f"Expected `{name}` to be 1 or larger, but got {value}.")
        self.num_classes = num_classes
        self.num_attributes = num_attributes
        zeros = torch.zeros(num_classes * num_attributes, dtype=torch.int64)
        self.add_state("correct", default=zeros.clone(), dist_reduce_fx="sum")
        self.add_state("total", default=zeros.clone(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, attribute: Tensor) -> None:
        """Count a batch: predicted classes (B,) or logits (B, Y), true classes (B,) and attribute values (B,).

        Raises:
            ValueError: if a label is out of range, which would count the sample to another group.
        """
        for name, labels, size in (("target", target, self.num_classes), ("attribute", attribute, self.num_attributes)):
            if len(labels) and not 0 <= (lowest := int(labels.min())) <= (highest := int(labels.max())) < size:
                raise ValueError(f"Expected `{name}` in [0, {size}), but got values from {lowest} to {highest}.")
        preds = preds.argmax(dim=1) if preds.ndim == 2 else preds
        self._add(*count_groups(preds, target, attribute, self.num_classes, self.num_attributes))

    def update_counts(self, correct: Tensor, total: Tensor) -> None:
        """Add counts that were made elsewhere (on a client, say), each of shape (Y * A,)."""
        self._update_count += 1  # torchmetrics warns of values computed before any update
        self._add(correct, total)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot the value, or several values over steps, as the metrics of torchmetrics do; a line or a point per group.

        Args:
            val: of ``compute`` or ``forward``, by default what ``compute`` returns now.
            ax: matplotlib's axes, by default new ones.

        Returns:
            The figure and its axes.
        """
        values = self.compute() if val is None else val
        flat = values.flatten() if isinstance(values, Tensor) else [value.flatten() for value in values]
        if isinstance(flat, Tensor):
            return self._plot(flat[0] if len(flat) == 1 else flat, ax)
        return self._plot([value[0] if len(value) == 1 else value for value in flat], ax)

    def _add(self, correct: Tensor, total: Tensor) -> None:
        self.correct += correct
        self.total += total

    def _accuracies(self) -> Tensor:
        return self.correct / self.total  # 0 / 0 is NaN: a group without samples has no accuracy


class GroupAccuracy(GroupMetric):
    """Accuracy of every (class, attribute) group, a tensor of shape (Y, A); NaN for a group without samples.

    Example:
        >>> metric = GroupAccuracy(2, 2)
        >>> metric.update(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 1, 1]))
        >>> metric.compute()
        tensor([[1.0000, 0.5000],
                [   nan, 1.0000]])
    """

    def compute(self) -> Tensor:
        """Return the accuracies, shape (Y, A)."""
        return self._accuracies().view(self.num_classes, self.num_attributes)


class WorstGroupAccuracy(GroupMetric):
    """The smallest accuracy of a group that has samples (thesis, equation 32); NaN where none has.

    Example:
        >>> metric = WorstGroupAccuracy(2, 2)
        >>> metric.update(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 1, 1]))
        >>> metric.compute()
        tensor(0.5000)
    """

    def compute(self) -> Tensor:
        """Return the worst group's accuracy, a scalar."""
        present = self._accuracies()[self.total > 0]
        return present.min() if len(present) else torch.tensor(float("nan"), device=self.total.device)


class AdjustedAccuracy(GroupMetric):
    r"""The groups' accuracies averaged with given weights, :math:`\sum_g w_g \mathrm{acc}_g / \sum_g w_g`.

    WaterBirds' "adjusted average" takes the groups' training counts as weights (Sagawa et al., ICLR 2020, arXiv:1911.08731).
    NaN if a group of positive weight has no samples. ``group_weights`` are Y * A non-negative weights, not all zero, in the
    order of groups (or ``ValueError``); the other arguments are those of ``GroupMetric``.

    Example:
        >>> metric = AdjustedAccuracy(2, 2, group_weights=[3, 1, 0, 0])
        >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.7500)
    """

    group_weights: Tensor

    def __init__(self, num_classes: int, num_attributes: int, group_weights: Sequence[float], **kwargs: Any) -> None:
        super().__init__(num_classes, num_attributes, **kwargs)
        weights = torch.tensor(group_weights, dtype=torch.float64)
        if weights.shape != (num_classes * num_attributes,) or (weights < 0).any() or not weights.sum() > 0:
            raise ValueError(
                f"Expected `group_weights` to be {num_classes * num_attributes} non-negative numbers, not all zero, but got "
                f"{list(group_weights)}."
            )
        self.register_buffer("group_weights", weights / weights.sum(), persistent=False)

    def compute(self) -> Tensor:
        """Return the weighted average, a scalar."""
        weighed = self.group_weights > 0
        return (self.group_weights[weighed] * self._accuracies()[weighed]).sum().float()
