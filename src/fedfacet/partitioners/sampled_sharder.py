"""Clients of equal size, some with few classes and some with many."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, check_whole
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner, check_enough
from fedfacet.types import Partition

_MOST = 2**62  # classes that numpy can draw from; there are never so many


@dataclass(eq=False, kw_only=True)
class SampledSharder(Partitioner):
    r"""Draw how many classes each client has, then which ones, and share out all samples among clients of equal size.

    Clients take their turn in random order. Each

    1. draws its number of classes uniformly from ``min_classes`` to ``max_classes``;
    2. draws that many classes, without replacement, with a probability in proportion to the samples they have left;
    3. takes n / K samples, equally many of each of its classes. Where a class has fewer left, the fullest classes make up for
       it, whether they are among its own or not: the last clients in turn may hold more classes than they drew, or fewer than
       ``min_classes`` where fewer are left.

    Source: the "sampled sharder" of De Cesare et al., Federated Learning Beyond Uniform Participation, section 4, with the
    range of its released code.

    Deviation: which distribution the paper calls broad it does not say; and here no sample is left over.

    Args:
        num_clients: K, 1 or larger.
        min_classes: 1 or larger.
        max_classes: ``min_classes`` or larger; no client can have more classes than there are.
        label: the data set's column whose values are the classes dealt: ``"y"``, or metadata such as a role or a writer.
        seed: of the draws; it does not follow the run's seed.
    """

    uses_all_samples = True

    num_clients: Annotated[int, Whole()] = 24
    min_classes: Annotated[int, Whole()] = 1
    max_classes: int = 50
    label: str = "y"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("partition.max_classes", self.max_classes, least=self.min_classes)

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        labels, left_Y = np.unique(y, return_counts=True)
        check_enough(len(y), self.num_clients, 1, "`partition.num_clients`")
        if len(labels) < self.min_classes:
            raise InfeasiblePartitionError(
                f"Expected at least {self.min_classes} classes, as many as each client gets, but the column {self.label!r} has "
                f"{len(labels)}: lower `partition.min_classes`."
            )
        draw = rng.stream(self.seed, "partition")
        waiting = [draw.permutation(np.flatnonzero(y == label)) for label in labels]
        sizes = draw.permutation([len(part) for part in np.array_split(np.arange(len(y)), self.num_clients)])
        owned: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * self.num_clients
        for client in draw.permutation(self.num_clients).tolist():
            taken_Y = self._shares(left_Y, int(sizes[client]), draw)
            ends_Y = left_Y.copy()
            left_Y = left_Y - taken_Y
            parts = [waiting[c][left_Y[c] : ends_Y[c]] for c in np.flatnonzero(taken_Y).tolist()]
            owned[client] = np.sort(np.concatenate(parts))
        return Partition(tuple(owned))

    def _shares(self, left_Y: NDArray[np.int64], size: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Return how many samples of each class the next client takes, ``size`` in all."""
        present = np.flatnonzero(left_Y)
        wanted = int(draw.integers(self.min_classes, min(self.max_classes, _MOST) + 1))
        number = min(wanted, len(present), size)
        # The first arrivals of Poisson processes are draws without replacement, each in proportion to what is left.
        chosen = present[np.argsort(draw.exponential(size=len(present)) / left_Y[present])[:number]]
        share, rest = divmod(size, number)
        taken_Y = np.zeros_like(left_Y)
        taken_Y[chosen] = share
        taken_Y[chosen[:rest]] += 1
        taken_Y = np.minimum(taken_Y, left_Y)
        while missing := size - int(taken_Y.sum()):
            fullest = int(np.argmax(left_Y - taken_Y))
            taken_Y[fullest] += min(missing, int(left_Y[fullest] - taken_Y[fullest]))
        return taken_Y
