"""Samples that the server owns, on which it judges models."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Declared, Whole
from fedfacet.data.dataset import Dataset
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.types import ServerData


@dataclass(eq=False, kw_only=True)
class ValidationOfServer(Declared):
    """Equally many samples of every class and attribute value, of neither clients, validation nor test.

    They are not the validation samples, which choose the best round. ``data.federated.deal`` says where they come from. They
    do not follow the run's seed.

    Source: the thesis, section 6.3, calls such samples D_V.

    Args:
        samples_per_cell: of every class with every attribute value, 1 or larger.
        attributes: whether the server knows the attribute values; the same samples are drawn where it does not.

    Raises:
        ValueError: if ``samples_per_cell`` is out of range.
    """

    option_group = "server_data."

    samples_per_cell: Annotated[int, Whole()] = 20
    attributes: bool = True

    def suffices(self, dataset: Dataset, indices: NDArray[np.int64]) -> bool:
        """Tell whether the server's samples can be drawn of those at ``indices``."""
        return _smallest(dataset, indices) >= self.samples_per_cell

    def draw(self, dataset: Dataset, indices: NDArray[np.int64], seed: int, *, keep: int = 0) -> ServerData:
        """Draw of the samples at ``indices``, and leave at least ``keep`` of every cell.

        Raises:
            InfeasiblePartitionError: if a cell has too few.
        """
        if (most := max(_smallest(dataset, indices) - keep, 0)) < self.samples_per_cell:
            remedy = "lower `server_data.samples_per_cell`, or " if most else ""
            raise InfeasiblePartitionError(
                f"Expected {self.samples_per_cell} samples of every class and attribute value for the server, but only {most} "
                f"can be spared of some: {remedy}choose a partition of fewer samples, or another data set."
            )
        cells = _cells(dataset, indices)
        drawn = [
            rng.stream(seed, "server-data", cell).permutation(indices[cells == cell])[: self.samples_per_cell]
            for cell in range(dataset.num_classes * dataset.num_attributes)
        ]
        return ServerData(np.sort(np.concatenate(drawn)), self.attributes)


def _cells(dataset: Dataset, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    cells: NDArray[np.int64] = dataset.y[indices] * dataset.num_attributes + dataset.a[indices]
    return cells


def _smallest(dataset: Dataset, indices: NDArray[np.int64]) -> int:
    """Return how many samples the smallest cell has."""
    return int(np.bincount(_cells(dataset, indices), minlength=dataset.num_classes * dataset.num_attributes).min())
