"""FedLD's loss decomposition of a round."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_whole
from fedfacet.callbacks.base import Callback
from fedfacet.clients.personal_memory import local_model
from fedfacet.metrics.group_counts import NAN
from fedfacet.metrics.loss_decomposition import LossDecomposition
from fedfacet.types import ClientUpdate, FederationState, State

if TYPE_CHECKING:
    from fedfacet.data.federated import FederatedData
    from fedfacet.federation import Federation

_TERMS = ("local_loss", "distribution_shift_loss", "aggregation_loss", "global_loss")


class Decomposition(Callback):
    """Split the loss of the new global model into local, distribution-shift and aggregation loss; see ``LossDecomposition``.

    The participants are the clients whose updates arrived, the samples those that they train on, the loss is the cross entropy
    (whatever they train with) in eval mode; the samples' losses are summed in float64. It takes m + 1 passes over the
    samples of the m participants.

    Metrics: ``decomposition/local_loss``, ``decomposition/distribution_shift_loss``, ``decomposition/aggregation_loss``,
    signed, and their sum ``decomposition/global_loss``; NaN where no update arrived.

    Args:
        data: says who trains on which samples.
        every_n_rounds: 1 or larger; the last round is measured always, the others in between are NaN.

    Attributes:
        last: the last round that was decomposed, and its participants in cohort order.

    Raises:
        ValueError: if ``every_n_rounds`` is no whole number from 1 on.

    Note:
        A local model has its client's personal layers, the global model has none of them.
    """

    def __init__(self, *, data: "FederatedData", every_n_rounds: int = 1) -> None:
        check_whole("callbacks.decomposition.every_n_rounds", every_n_rounds)
        self.owned = data.partition.indices
        self.every_n_rounds = every_n_rounds
        self.needs_updates = True
        self.last: tuple[LossDecomposition, tuple[int, ...]] | None = None
        self._round: tuple[FederationState | None, Sequence[ClientUpdate]] = None, ()

    def on_fit_start(self, federation: "Federation") -> None:
        """Ask for the updates of rounds that are decomposed, and of no others."""
        self.needs_updates = self._is_due(federation, federation.state.round + 1)

    def on_updates(self, federation: "Federation", updates: Sequence[ClientUpdate]) -> None:
        """Take note of the round."""
        self._round = federation.state, updates

    def measure(self, federation: "Federation", round: int) -> Mapping[str, float]:
        """Return the terms of the round."""
        before, updates = self._round
        self._round = None, ()
        if before is None or not updates or not self._is_due(federation, round):
            return {f"decomposition/{name}": NAN for name in _TERMS}
        samples = [self.owned[update.client_id] for update in updates]
        losses = [
            self._losses(federation, local_model(federation.sent(before, update.client_id), update), samples, update.memory)
            for update in updates
        ]
        decomposition = LossDecomposition(
            num_samples=np.array(list(map(len, samples))),
            losses=np.array(losses),
            global_losses=np.array(self._losses(federation, federation.state.model, samples)),
        )
        self.last = decomposition, tuple(update.client_id for update in updates)
        return {f"decomposition/{name}": value for name, value in decomposition.terms().items()}

    def on_state_complete(self, federation: "Federation") -> None:
        """Say whether the next round is decomposed."""
        self.needs_updates = self._is_due(federation, federation.state.round + 1)

    def _is_due(self, federation: "Federation", round: int) -> bool:
        return round % self.every_n_rounds == 0 or round >= federation.rounds

    def _losses(
        self, federation: "Federation", model: State, samples: Sequence[NDArray[np.int64]], memory: State | None = None
    ) -> list[float]:
        return [counts.loss for counts in federation.engine.evaluate(model, list(samples), memory)]
