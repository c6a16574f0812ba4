"""FedLD's loss decomposition of a round."""

from collections.abc import Mapping

import numpy as np

from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.clients.personal_memory import local_model
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import NAN
from fedfacet.metrics.loss_decomposition import LossDecomposition

_TERMS = ("local_loss", "distribution_shift_loss", "aggregation_loss", "global_loss")


class Decomposition(UpdatesMeasurement):
    """Split the loss of the new global model into local, distribution-shift and aggregation loss; see ``LossDecomposition``.

    The participants are the clients whose updates arrived, on the samples that they train on. The loss is the cross entropy in
    eval mode, whatever they train with, summed in float64. With m participants this takes m + 1 passes over their samples.

    Metrics: ``decomposition/local_loss``, ``decomposition/distribution_shift_loss``, ``decomposition/aggregation_loss``,
    signed, and their sum ``decomposition/global_loss``; NaN where no update arrived.

    Args:
        data: says who trains on which samples.

    Attributes:
        last: the last round that was decomposed, and its participants in cohort order.

    Note:
        A local model has its client's personal layers, the global model has none of them.
    """

    needs_logits = True

    name = "decomposition"

    def __init__(self, *, data: FederatedData, every_n_rounds: int = 1) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        self.owned = data.partition.indices
        self.last: tuple[LossDecomposition, tuple[int, ...]] | None = None

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the terms of the round."""
        before, updates = self.take_round()
        if before is None or not updates or not self.is_due(federation, round):
            return {f"decomposition/{name}": NAN for name in _TERMS}
        evaluate, samples = federation.engine.evaluate, [self.owned[update.client_id] for update in updates]
        models = (local_model(federation.sent(before, update.client_id), update) for update in updates)
        local = [evaluate(model, samples, update.memory) for model, update in zip(models, updates, strict=True)]
        decomposition = LossDecomposition(
            num_samples=np.array(list(map(len, samples))),
            losses=np.array([[counts.loss for counts in of_model] for of_model in local]),
            global_losses=np.array([counts.loss for counts in evaluate(federation.state.model, samples)]),
        )
        self.last = decomposition, tuple(update.client_id for update in updates)
        return {f"decomposition/{name}": value for name, value in decomposition.terms().items()}
