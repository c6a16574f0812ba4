"""Counts per group, from which every accuracy follows; counts add up, ratios do not (law 8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

NAN = float("nan")

Labels = NDArray[np.int64]


def group_index(y: Tensor, a: Tensor, num_attributes: int) -> Tensor:
    """Return g = y * num_attributes + a, the one definition of a group's number."""
    return y * num_attributes + a


def group_key(group: int, num_attributes: int) -> str:
    """Return the name of a group in metric keys, for example ``"y0_a1"``."""
    return f"y{group // num_attributes}_a{group % num_attributes}"


@dataclass(frozen=True, slots=True, eq=False)
class GroupCounts:
    """What evaluation keeps of a set of samples: every accuracy and every measure of fairness follows from it.

    ``confusion`` counts samples per group and predicted class, shape (G, Y) with G = Y * A; ``loss_sum`` sums their cross
    entropies.
    """

    confusion: Labels
    loss_sum: float

    @classmethod
    def of(
        cls, predicted: Labels, y: Labels, a: Labels, num_classes: int, num_attributes: int, loss_sum: float = 0.0
    ) -> "GroupCounts":
        """Count samples, given their predicted and true classes and their attribute values, each of shape (n,).

        Example:
            >>> counts = GroupCounts.of(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([0, 0, 1]), 2, 2)
            >>> counts.confusion.tolist(), counts.worst_group_accuracy
            ([[1, 1], [0, 0], [0, 0], [0, 1]], 0.5)
        """
        cells = (y * num_attributes + a) * num_classes + predicted
        counts = np.bincount(cells, minlength=num_classes * num_attributes * num_classes)
        return cls(counts.reshape(-1, num_classes), loss_sum)

    @classmethod
    def of_hits(cls, right_YA: ArrayLike, all_YA: ArrayLike) -> "GroupCounts":
        """Return counts of which it is known who is right, and not for what the others are taken: all for the next class.

        Example:
            >>> GroupCounts.of_hits([[2, 0], [1, 0]], [[2, 4], [3, 0]]).accuracies
            (1.0, 0.0, 0.3333333333333333, nan)
        """
        right_G, wrong_G = np.ravel(right_YA), np.ravel(np.subtract(all_YA, right_YA))
        num_classes, num_attributes = np.shape(right_YA)
        confusion, groups = np.zeros((right_G.size, num_classes), np.int64), np.arange(right_G.size)
        for shift, counts in enumerate((right_G, wrong_G)):
            confusion[groups, (groups // num_attributes + shift) % num_classes] += counts
        return cls(confusion, NAN)

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        return GroupCounts(self.confusion + other.confusion, self.loss_sum + other.loss_sum)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupCounts):
            return NotImplemented
        return np.array_equal(self.confusion, other.confusion) and self.loss_sum == other.loss_sum

    @property
    def correct(self) -> tuple[int, ...]:
        """Correctly classified samples per group, shape (G,)."""
        groups, num_classes = self.confusion.shape
        right = self.confusion[np.arange(groups), np.arange(groups) // (groups // num_classes)]
        return tuple(right.tolist())

    @property
    def total(self) -> tuple[int, ...]:
        """Samples per group, shape (G,)."""
        return tuple(self.confusion.sum(axis=1).tolist())

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy per group; NaN for a group without samples."""
        return tuple(c / t if t else NAN for c, t in zip(self.correct, self.total, strict=True))

    @property
    def average_accuracy(self) -> float:
        """Accuracy over all samples; NaN without any."""
        return sum(self.correct) / sum(self.total) if sum(self.total) else NAN

    @property
    def worst_group_accuracy(self) -> float:
        """The smallest accuracy of a group that has samples; NaN where none has."""
        return min((c / t for c, t in zip(self.correct, self.total, strict=True) if t), default=NAN)

    @property
    def loss(self) -> float:
        """Mean cross entropy over all samples; NaN without any."""
        return self.loss_sum / sum(self.total) if sum(self.total) else NAN

    def adjusted_accuracy(self, group_weights: Sequence[float]) -> float:
        """Return the groups' accuracies averaged with given weights, for example the groups' training counts.

        NaN if a group of positive weight has no samples, or all weights are zero.
        """
        weight = sum(group_weights)
        if not weight:
            return NAN
        return sum(w * acc for w, acc in zip(group_weights, self.accuracies, strict=True) if w) / weight


def count_groups(predictions: Tensor, y: Tensor, a: Tensor, num_classes: int, num_attributes: int) -> tuple[Tensor, Tensor]:
    """Return a batch's correct and all samples per group, int64 of shape (Y * A,); all labels have the shape (B,)."""
    groups = group_index(y, a, num_attributes)
    num_groups = num_classes * num_attributes
    total = torch.bincount(groups, minlength=num_groups)
    correct = torch.bincount(groups[predictions == y], minlength=num_groups)
    return correct, total
