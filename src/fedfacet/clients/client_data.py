"""One client's own samples."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset
from fedfacet.errors import DisclosureError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Batch


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """A view on the data set: what one client holds.

    Attributes:
        dataset: shared by all clients, never copied.
        indices: sorted positions of this client's samples, shape (n_k,).
        device: where batches go.
        memory_format: of the images in a batch.
    """

    dataset: Dataset
    indices: NDArray[np.int64]
    device: torch.device
    memory_format: torch.memory_format = torch.contiguous_format

    def __len__(self) -> int:
        """Return n_k."""
        return len(self.indices)

    @property
    def y(self) -> NDArray[np.int64]:
        """The classes, shape (n_k,)."""
        return self.dataset.y[self.indices]

    @property
    def interaction_matrix(self) -> InteractionMatrix:
        """The true counts per class and attribute, which a real client would not know.

        Raises:
            DisclosureError: if clients do not know the attributes.
        """
        a = self.dataset.a[self.indices]
        if (a < 0).any():
            raise DisclosureError(
                "Expected clients that know the attributes of their samples, but under this `disclosure` nobody does: choose "
                "another method, or a disclosure whose clients know them."
            )
        return InteractionMatrix.from_labels(self.y, a, self.dataset.num_classes, self.dataset.num_attributes)

    def batch(self, positions: NDArray[np.int64]) -> Batch:
        """Return the samples at positions 0 .. n_k - 1 of this client, as they are, on its device."""
        return self.dataset.batch(self.indices[positions], self.device, self.memory_format)

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield all samples in order, the last batch possibly short; by default in batches good for a forward pass."""
        size = batch_size or evaluation_batch_size(self.dataset, self.device)
        for start in range(0, len(self), size):
            yield self.batch(np.arange(start, min(start + size, len(self))))


@functools.lru_cache(maxsize=2)  # with attributes and without
def evaluation_batch_size(dataset: Dataset, device: torch.device) -> int:
    """Return how many samples go through a model at once where no gradients are asked for.

    Many on an accelerator; on a CPU few enough for a layer's activations to stay in the cache (64 images of 3 x 32 x 32 or
    fewer larger ones: 1.7 times as fast as 512), and many where one sample is small.
    """
    if device.type != "cpu":
        return 1024
    return min(4096, max(16, 64 * 3 * 32 * 32 // max(1, math.prod(dataset.input_shape))))
