"""A data set in the hands of clients."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset
from fedfacet.data.local_holdout import hold_out_locally
from fedfacet.data.validation import partition_and_hold_out
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData:
    """A data set, who trains on which of its samples, which of them validate, and which every client holds out for itself."""

    dataset: Dataset
    partition: Partition
    val: NDArray[np.int64]
    local_holdout: tuple[NDArray[np.int64], ...] = ()

    @property
    def pooled(self) -> "FederatedData":
        """The same data in the hands of one client, who also measures with what all clients hold out."""
        holdout = Partition(self.local_holdout).pooled.indices
        return replace(self, partition=self.partition.pooled, local_holdout=holdout)

    @property
    def matrices(self) -> list[InteractionMatrix]:
        """The clients' true interaction matrices."""
        shape = self.dataset.num_classes, self.dataset.num_attributes
        return [
            InteractionMatrix.from_labels(self.dataset.y[client], self.dataset.a[client], *shape)
            for client in self.partition.indices
        ]

    @property
    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The positions of the validation and of the test samples, as ``"val"`` and ``"test"``."""
        return {"val": self.val, "test": self.dataset.test}

    @property
    def group_weights(self) -> list[float]:
        """Training samples per group, in the order g = y * num_attributes + a."""
        weights: list[float] = np.sum([matrix.counts for matrix in self.matrices], axis=0).ravel().tolist()
        return weights


def deal(
    dataset: Dataset, partitioner: Partitioner, *, local_holdout: float = 0.0, seed: int = 0, holdout_seed: int = 0
) -> FederatedData:
    """Deal a data set's training samples to clients, and hold out what validates.

    Args:
        dataset: to deal.
        partitioner: says who gets what.
        local_holdout: the part of every client's samples, in [0, 1), that it never trains on.
        seed: of the draw of validation samples.
        holdout_seed: of the draw of what clients hold out.

    Raises:
        InfeasiblePartitionError: if the data set has too few samples.
        ValueError: if ``local_holdout`` is out of range.
    """
    partition, val = partition_and_hold_out(dataset, partitioner, seed=seed)
    partition, held_out = hold_out_locally(dataset.y, partition, local_holdout, seed=holdout_seed)
    return FederatedData(dataset, partition, val, held_out)
