"""A fixed number of classes per client."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.base import Partitioner, check_enough
from fedfacet.types import Partition

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
