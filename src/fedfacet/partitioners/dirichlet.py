"""Dirichlet label skew."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.partitioners.base import Partitioner, check_enough, topped_up
from fedfacet.types import Partition


@dataclass(eq=False, kw_only=True)
class DirichletPartitioner(Partitioner):
    r"""Split every class over the clients by a Dirichlet draw.

    For each class the shares are :math:`p \sim \mathrm{Dir}(\alpha \mathbf{1}_K)`, and its samples, in random order, are cut
    at the cumulated shares. Clients left with fewer than ``min_samples`` then receive samples, one at a time, from the client
    that has most (of the highest class that it holds, as its samples lie by class); nothing is drawn again.

    Source: Hsu et al., arXiv:1909.06335, in the form of Yurochkin et al., arXiv:1905.12022 (shares per class over clients).

    Args:
        num_clients: K, 1 or larger.
        alpha: concentration, in (0, 1e9]; small values give clients few classes, large ones the global distribution.
        min_samples: that every client must have, 1 or larger.
        label: the data set's column whose values are the classes: ``"y"``, or metadata such as a role or a writer.
        seed: of the draws; it does not follow the run's seed.
    """

    uses_all_samples = True

    num_clients: Annotated[int, Whole()] = 24
    alpha: Annotated[float, Within("(0, 1e9]", ": for equal shares choose `partition=iid`")] = 0.5
    min_samples: Annotated[int, Whole()] = 2
    label: str = "y"
    seed: int = 0

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        check_enough(len(y), self.num_clients, self.min_samples, "`partition.num_clients` or `partition.min_samples`")
        owned: list[list[int]] = [[] for _ in range(self.num_clients)]
        for label in np.unique(y):
            draw = rng.stream(self.seed, "partition", int(label))
            samples = draw.permutation(np.flatnonzero(y == label))
            shares = draw.dirichlet(np.full(self.num_clients, self.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for client, part in zip(owned, np.split(samples, cuts), strict=True):
                client += part.tolist()
        return topped_up(owned, self.min_samples)
