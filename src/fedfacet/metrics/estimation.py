"""The error of the heterogeneity triplets that clients disclose."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfacet.errors import FedFacetError
from fedfacet.heterogeneity import HeterogeneityTriplet
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.run_files import is_there, rows_of

MEASURES = HeterogeneityTriplet._fields
FILE = "heterogeneity.csv"  # in a run folder, by ``write_triplets``
_COLUMNS = ["client", *(f"{kind}/{measure}" for measure in MEASURES for kind in ("true", "disclosed")), "distance"]


class Triplets(NamedTuple):
    """The triplets of K clients; columns class imbalance, attribute imbalance, spurious correlation."""

    clients: tuple[int, ...]  # their ids
    true: NDArray[np.float64]  # shape (K, 3)
    disclosed: NDArray[np.float64]  # what the clients said, shape (K, 3)

    @classmethod
    def of(
        cls, true: Sequence[Sequence[float]] | Mapping[int, Sequence[float]], disclosed: Mapping[int, Sequence[float]]
    ) -> "Triplets":
        """Pair the true triplets of all clients with what some of them disclosed."""
        clients = tuple(sorted(disclosed))
        pairs = [(true[client], disclosed[client]) for client in clients]
        both = np.array(pairs, dtype=np.float64).reshape(len(clients), 2, len(MEASURES))
        return cls(clients, both[:, 0], both[:, 1])

    @property
    def distances(self) -> NDArray[np.float64]:
        """Euclidean distances, shape (K,)."""
        return np.linalg.norm(self.disclosed - self.true, axis=1)  # type: ignore[no-any-return]


def measure_estimation(triplets: Triplets) -> dict[str, Any]:
    r"""Return the error of disclosed triplets: the error that FedDiverse (arXiv:2504.11216) reports in table 8, and more.

    ``clients``: how many, at least one; ``distance_mean`` and ``distance_max`` of the Euclidean distance
    :math:`\lVert \hat\Delta^k - \Delta^k \rVert_2`; and per measure its ``mean_absolute_error`` over the clients and its
    Pearson ``correlation`` with the truth, NaN where either does not vary.

    Example:
        >>> error = measure_estimation(Triplets.of([(0, 0, 0.5), (0, 0.5, 0)], {0: [0, 0.3, 0.1], 1: [0, 0.5, 0]}))
        >>> error["distance_mean"], error["distance_max"]
        (0.25, 0.5)
    """
    errors = np.abs(triplets.disclosed - triplets.true).mean(axis=0).tolist()
    correlations = [
        # Rounded, because equal triplets of different clients may differ in the last bit.
        math.nan if np.ptp(true) < 1e-9 or np.ptp(disclosed) < 1e-9 else float(np.corrcoef(true, disclosed)[0, 1])
        for true, disclosed in zip(triplets.true.T, triplets.disclosed.T, strict=True)
    ]
    return {
        "clients": len(triplets.clients),
        "distance_mean": float(triplets.distances.mean()),
        "distance_max": float(triplets.distances.max()),
        "mean_absolute_error": dict(zip(MEASURES, errors, strict=True)),
        "correlation": dict(zip(MEASURES, correlations, strict=True)),
    }


def write_triplets(triplets: Triplets, file: Path, names: Sequence[str] = ()) -> None:
    """Write a row per client, with its name if there are ``names``, whole or not at all, into a folder that exists.

    A run's folder is not made again where it was removed.
    """
    with atomic_write(file) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow([*_COLUMNS, *(["name"] if names else [])])
        for client, true, disclosed, distance in zip(*triplets, triplets.distances, strict=True):
            pairs = [value for pair in zip(true, disclosed, strict=True) for value in pair]
            writer.writerow([client, *map(float, pairs), float(distance), *([names[client]] if names else [])])


def read_triplets(run_dir: Path) -> Triplets:
    """Read what ``write_triplets`` wrote into a run folder.

    Raises:
        FedFacetError: if there is no such file, or it is not what was written.
    """
    file = run_dir / FILE
    if not is_there(file):
        raise FedFacetError(
            f"Expected {file}, but there is none: name the folder of a run whose clients disclosed their heterogeneity, as "
            "with selector=feddiverse."
        )
    kinds = {"client": int, "name": str}
    rows = rows_of(file, _COLUMNS, lambda column, text: kinds.get(column, float)(text), least=1)
    numbers = np.array([[row[column] for column in _COLUMNS[1:-1]] for row in rows]).reshape(-1, len(MEASURES), 2)
    return Triplets(tuple(row["client"] for row in rows), numbers[:, :, 0], numbers[:, :, 1])
