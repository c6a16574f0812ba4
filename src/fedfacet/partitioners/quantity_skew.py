"""Clients of unequal size and equal mixture."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.partitioners.base import Partitioner, check_enough, topped_up
from fedfacet.types import Partition


@dataclass(eq=False, kw_only=True)
class QuantitySkewPartitioner(Partitioner):
    r"""Give clients shares of all data that a Dirichlet distribution draws, of every class the same share.

    One draw :math:`p \sim \mathrm{Dir}(c \mathbf{1}_K)` says how much each client has. All samples, each class in random
    order and spread evenly over the others, are cut at its cumulated shares: a client's size is right to a sample, and so
    is its share of every class. Clients left with fewer than ``min_samples`` then receive samples, one at a time, from
    the client that has most.

    Source: thesis, section 4.5.1 (Nemeth et al., IEEE Access 2025, doi 10.1109/ACCESS.2025.3546478), with c = 0.85.

    Args:
        num_clients: K, 1 or larger.
        concentration: c, in (0, 1e9]; small values make few clients large, large ones make all equal.
        descending: whether client 0 is the largest; otherwise sizes lie as they are drawn.
        min_samples: that every client must have, 1 or larger.
        label: the data set's column whose values are the classes: ``"y"``, or metadata such as a role or a writer.
        seed: of the draws; it does not follow the run's seed.
    """

    uses_all_samples = True

    num_clients: Annotated[int, Whole()] = 10
    concentration: Annotated[float, Within("(0, 1e9]", ": for equal shares choose `partition=iid`")] = 0.85
    descending: bool = True
    min_samples: Annotated[int, Whole()] = 2
    label: str = "y"
    seed: int = 0

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        check_enough(len(y), self.num_clients, self.min_samples, "`partition.num_clients` or `partition.min_samples`")
        shares = rng.stream(self.seed, "partition").dirichlet(np.full(self.num_clients, self.concentration))
        if self.descending:
            shares = np.sort(shares)[::-1]
        samples, places = [], []
        for label in np.unique(y):  # spread evenly, so that a cut takes the same share of every class
            draw = rng.stream(self.seed, "partition", int(label))
            samples.append(draw.permutation(np.flatnonzero(y == label)))
            places.append((np.arange(len(samples[-1])) + draw.random()) / len(samples[-1]))
        in_turn = np.concatenate(samples)[np.argsort(np.concatenate(places), kind="stable")]
        cuts = np.rint(np.cumsum(shares)[:-1] * len(y)).astype(np.int64)
        owned = [part.tolist() for part in np.split(in_turn, cuts)]
        return topped_up(owned, self.min_samples)
