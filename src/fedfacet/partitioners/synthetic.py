"""Clients that are made up of samples: shares alike or drawn, and classes few or many."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, Within, check_whole
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner, check_enough, topped_up
from fedfacet.types import Partition, cut_partition


@dataclass(eq=False, kw_only=True)
class IIDPartitioner(Partitioner):
    """Shuffle all samples and cut them into parts whose sizes differ by at most one.

    Args:
        num_clients: 1 or larger.
        seed: of the shuffle; it does not follow the run's seed.
    """

    uses_all_samples = True

    num_clients: Annotated[int, Whole()] = 24
    seed: int = 0

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        check_enough(len(y), self.num_clients, 1, "`partition.num_clients`")
        order = rng.stream(self.seed, "partition").permutation(len(y))
        least, more = divmod(len(y), self.num_clients)
        sizes = np.repeat([least + 1, least], [more, self.num_clients - more])
        owners = np.repeat(np.arange(self.num_clients), sizes)
        return cut_partition(order[np.lexsort((order, owners))], sizes)


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


@dataclass(eq=False, kw_only=True)
class QuantitySkewPartitioner(Partitioner):
    r"""Give clients shares of all data that a Dirichlet distribution draws, of every class the same share.

    One draw :math:`p \sim \mathrm{Dir}(c \mathbf{1}_K)` says how much each client has. All samples, each class in random
    order and spread evenly over the others, are cut at its cumulated shares: a client's size is right to a sample, and so
    is its share of every class. Clients left with fewer than ``min_samples`` then receive samples, one at a time, from
    the client that has most.

    Source: thesis, section 4.7.1 (Nemeth et al., IEEE Access 2025, doi 10.1109/ACCESS.2025.3546478), with c = 0.85.

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


_FEWEST = 4  # clients where nobody says how many, however few hold every class


@dataclass(eq=False, kw_only=True)
class ClassesPerClientPartitioner(Partitioner):
    r"""Give every client samples of exactly N_c classes.

    Each of Y classes is dealt to :math:`K N_c / Y` clients, and its samples, in random order, are divided equally among them;
    where that is no whole number, some classes drawn at random go to one client more than the others. Shares of a class differ
    by one sample at most, and every sample has an owner.

    One client after another, in random order, takes the N_c classes that have most places left, ties at random. This never gets
    stuck (the Gale-Ryser construction), so that nothing is drawn again.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 3.4.

    Deviation: the released code draws N_c or N_c + 1 classes per client and fills up from whatever is left; here N_c is exact.

    Args:
        num_clients: K, 1 or larger; ``None`` for as many as it takes to hold every class, but no fewer than 4.
        classes_per_client: N_c, 1 or larger.
        label: the data set's column whose values are the classes dealt: ``"y"``, or metadata such as a role or a writer.
        seed: of the draws; it does not follow the run's seed.

    Example:
        >>> y = np.repeat(np.arange(4), 6)
        >>> partition = ClassesPerClientPartitioner(num_clients=6, classes_per_client=2).partition(y, 0 * y)
        >>> [len(set(y[client])) for client in partition.indices], [len(client) for client in partition.indices]
        ([2, 2, 2, 2, 2, 2], [4, 4, 4, 4, 4, 4])
    """

    uses_all_samples = True

    num_clients: Annotated[int | None, Whole()] = 24
    classes_per_client: Annotated[int, Whole()] = 2
    label: str = "y"
    seed: int = 0

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        labels, sizes_Y = np.unique(y, return_counts=True)
        clients = self.num_clients or max(_FEWEST, math.ceil(len(labels) / self.classes_per_client))
        places_Y = self._places(clients, labels, sizes_Y, rng.stream(self.seed, "partition-places"))
        owned: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        for label, holders in zip(labels.tolist(), self._holders(clients, places_Y), strict=True):
            draw = rng.stream(self.seed, "partition", label)
            samples = draw.permutation(np.flatnonzero(y == label))
            for client, share in zip(draw.permutation(holders).tolist(), np.array_split(samples, len(holders)), strict=True):
                owned[client].append(share)
        return Partition(tuple(np.sort(np.concatenate(shares)) for shares in owned))

    def _places(
        self, clients: int, labels: NDArray[np.int64], sizes_Y: NDArray[np.int64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return to how many clients each class goes."""
        each = self.classes_per_client
        settings = "`partition.num_clients` or `partition.classes_per_client`"
        check_enough(int(sizes_Y.sum()), clients, each, settings)
        if len(labels) < each:
            raise InfeasiblePartitionError(
                f"Expected at least {each} classes, as many as each client gets, but the column {self.label!r} has "
                f"{len(labels)}: lower `partition.classes_per_client`."
            )
        if clients * each < len(labels):
            raise InfeasiblePartitionError(
                f"Expected {clients} clients of {each} classes to hold all {len(labels)} values of the column {self.label!r}, "
                f"but they hold {clients * each} at most: raise {settings}."
            )
        fewest, more = divmod(clients * each, len(labels))
        places_Y = np.full(len(labels), fewest)
        roomy = np.flatnonzero(sizes_Y > fewest)
        if sizes_Y.min() < fewest or len(roomy) < more:
            scarce = int(np.argmin(sizes_Y))
            raise InfeasiblePartitionError(
                f"Expected at least {fewest + bool(more)} samples of a class, one for each client that holds it, but the class "
                f"{labels[scarce]} has {sizes_Y[scarce]}: lower {settings}."
            )
        places_Y[draw.permutation(roomy)[:more]] += 1
        return places_Y

    def _holders(self, clients: int, places_Y: NDArray[np.int64]) -> list[list[int]]:
        """Return per class the clients that hold it."""
        draw = rng.stream(self.seed, "partition-assignment")
        left_Y = places_Y.copy()
        holders: list[list[int]] = [[] for _ in left_Y]
        for client in draw.permutation(clients).tolist():
            fullest_first = np.lexsort((draw.random(len(left_Y)), -left_Y))
            for position in fullest_first[: self.classes_per_client].tolist():
                left_Y[position] -= 1
                holders[position].append(client)
        return holders


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
