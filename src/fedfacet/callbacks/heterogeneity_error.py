"""How far clients' own account of their heterogeneity is from the truth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.heterogeneity import HeterogeneityTriplet
from fedfacet.metrics.estimation import FILE, Triplets, measure_estimation, write_triplets
from fedfacet.records import RoundResult
from fedfacet.storage.dealt import MANY
from fedfacet.types import Partition

QUERY = "heterogeneity"  # under which name clients disclose their triplets


class HeterogeneityError(Callback):
    """Compare what clients disclosed of their heterogeneity with their true triplets, which the server never sees.

    ``heterogeneity.csv`` gets a row per client in the round in which it was asked. The run's summary gets the errors as
    ``heterogeneity_error`` (see ``measure_estimation``); they are measured once and are no metric of a round. There is neither
    where nobody was asked or the data set knows no attributes.

    Args:
        data: the federation's data, whose attributes give the truth.
    """

    def __init__(self, *, run_dir: Path, data: FederatedData) -> None:
        self.file = run_dir / FILE
        self.data = data
        self._written: Mapping[int, Any] = {}
        self._true: dict[int, HeterogeneityTriplet] = {}

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Write the file when there are new answers, and when a run is resumed."""
        if len(federation.state.disclosures.get(QUERY, {})) <= MANY:  # else a file of everybody would be written every round
            self._write(federation)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Write what has not been written."""
        if status != "failed":
            self._write(federation)

    def _write(self, federation: Federation) -> None:
        disclosed = federation.state.disclosures.get(QUERY, {})
        if disclosed != self._written and (triplets := self._triplets(federation)) is not None:
            write_triplets(triplets, self.file, self.data.client_names)
            self._written = dict(disclosed)

    def summarize(self, federation: Federation) -> Mapping[str, Any]:
        """Return the errors."""
        triplets = self._triplets(federation)
        return {} if triplets is None else {"heterogeneity_error": measure_estimation(triplets)}

    def _triplets(self, federation: Federation) -> Triplets | None:
        disclosed = federation.state.disclosures.get(QUERY)
        if not disclosed or self.data.dataset.num_attributes < 2:
            return None
        new = [client_id for client_id in disclosed if client_id not in self._true]
        matrices = self.data.matrices_of(Partition(tuple(self.data.partition.indices[client_id] for client_id in new)))
        self._true |= {client_id: matrix.triplet for client_id, matrix in zip(new, matrices, strict=True)}
        return Triplets.of(self._true, disclosed)
