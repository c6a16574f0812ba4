"""Objectives whose loss depends on how many samples of what a client holds."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch


class CountingObjective(ClassificationObjective):
    """Go through a client's samples once before its steps, and count. No model is asked, and nothing is sent."""

    @abstractmethod
    def count(self, batches: Iterable[Batch]) -> None:
        """Take note of what the client holds."""

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Count the client's samples."""
        self.count(batches)

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Look at nothing."""

    def on_train_start(self) -> None:
        """Count under a plain ``L.Trainer`` too, from its training samples."""
        loader: Iterable[Sequence[Tensor]] = self.trainer.train_dataloader  # type: ignore[assignment]
        self.count(Batch(*batch) for batch in loader)


def class_counts(batches: Iterable[Batch]) -> Tensor:
    """Return the number of samples of each class, up to the largest class among them; float32."""
    return torch.bincount(torch.cat([batch.y for batch in batches])).float()


def for_all_classes(values: Tensor, logits: Tensor, *, absent: float) -> Tensor:
    """Return a value for each class of the ``logits`` (B, Y), shape (Y,); classes beyond ``values`` have that of ``absent``."""
    return functional.pad(values, (0, logits.shape[1] - len(values)), value=absent)
