"""One client's own samples."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Batch


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """A view on the data set: what one client holds.

    Attributes:
        dataset: shared by all clients, never copied.
        indices: sorted positions of this client's samples, shape (n_k,).
        device: where batches go.
    """

    dataset: Dataset
    indices: NDArray[np.int64]
    device: torch.device

    def __len__(self) -> int:
        """Return n_k."""
        return len(self.indices)

    @property
    def y(self) -> NDArray[np.int64]:
        """The classes, shape (n_k,)."""
        return self.dataset.y[self.indices]

    @property
    def interaction_matrix(self) -> InteractionMatrix:
        """The true counts per class and attribute, which a real client would not know."""
        a = self.dataset.a[self.indices]
        return InteractionMatrix.from_labels(self.y, a, self.dataset.num_classes, self.dataset.num_attributes)

    def batch(self, positions: NDArray[np.int64]) -> Batch:
        """Return the samples at positions 0 .. n_k - 1 of this client, on its device."""
        return self.dataset.batch(self.indices[positions], self.device)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield all samples in order, the last batch possibly short."""
        for start in range(0, len(self), batch_size):
            yield self.batch(np.arange(start, min(start + batch_size, len(self))))
