"""The partitioners of Flower's ``flwr-datasets``."""

import contextlib
import inspect
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole
from fedfacet.errors import ConfigError, InfeasiblePartitionError, first_line
from fedfacet.optional import required
from fedfacet.partitioners.base import Partitioner, check_enough
from fedfacet.types import Partition

log = logging.getLogger(__name__)

_POSITION = "fedfacet_position"


@dataclass(eq=False, kw_only=True)
class FlwrPartitioner(Partitioner):
    """Deal samples as a partitioner of ``flwr_datasets`` does, to the same clients by the same draws.

    It sees the column ``label`` of each sample under that name, and the attribute as ``a``. Needs the packages
    ``flwr-datasets`` and ``datasets`` (``pip install fedfacet[flwr]``).

    Args:
        name: of a class of ``flwr_datasets.partitioner``.
        num_clients: its ``num_partitions``, if it has such an argument.
        label: the data set's column by which it deals, its ``partition_by``, if it has such an argument.
        seed: its ``seed``, if it has such an argument; it does not follow the run's seed.
        settings: its other arguments. ``alpha`` is 0.5 where it needs one and none is given.

    Raises:
        ConfigError: if the package is missing, has no such class, or the class refuses its arguments.
    """

    uses_all_samples = True

    name: str = "DirichletPartitioner"
    num_clients: Annotated[int, Whole()] = 24
    label: str = "y"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        rng.stream(self.seed, "partition")  # refuses one below 0
        self._made()  # refuses its arguments now

    def partition(self, y: NDArray[np.int64], a: NDArray[np.int64]) -> Partition:
        """Deal the samples; see ``Partitioner.partition``."""
        datasets = required("datasets", extra="flwr", wanted_by="partition=flwr")
        partitioner = self._made()
        if "num_partitions" in inspect.signature(type(partitioner)).parameters:
            check_enough(len(y), self.num_clients, 1, "`partition.num_clients`")
        partitioner.dataset = datasets.Dataset.from_dict({"a": a, self.label: y, _POSITION: np.arange(len(y))})
        with warnings.catch_warnings(record=True) as said, open(os.devnull, "w") as nowhere:
            warnings.simplefilter("always")
            try:
                with contextlib.redirect_stdout(nowhere):  # some print what they do
                    owned = [partitioner.load_partition(number)[_POSITION] for number in range(partitioner.num_partitions)]
            except (ValueError, TypeError) as error:
                raise InfeasiblePartitionError(
                    f"Expected {self.name} to deal {len(y)} samples, but it says: {first_line(error)}"
                ) from None
        for line in dict.fromkeys(str(one.message) for one in said if issubclass(one.category, UserWarning)):
            log.warning("%s says: %s", self.name, line[:200])
        return Partition(tuple(np.sort(np.array(client, dtype=np.int64)) for client in owned))

    def _made(self) -> Any:
        """Return a new partitioner, which deals only once."""
        package = required("flwr_datasets.partitioner", extra="flwr", wanted_by="partition=flwr")
        known = [name for name in package.__all__ if name != "Partitioner" and "Vertical" not in name]  # which deal columns
        if self.name not in known:
            raise ConfigError(f"Expected `partition.name` to be one of {', '.join(known)}, but got {self.name!r}: fix it.")
        kind = getattr(package, self.name)
        taken = inspect.signature(kind).parameters
        usual = {"num_partitions": self.num_clients, "partition_by": self.label, "seed": self.seed, "alpha": 0.5}
        try:
            return kind(**{name: value for name, value in usual.items() if name in taken} | dict(self.settings))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Expected `partition.settings` that {self.name} takes ({', '.join(taken)}), but it says: {first_line(error)}"
            ) from None
