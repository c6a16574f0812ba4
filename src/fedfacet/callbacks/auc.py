"""The area under the global model's ROC curve, for classes of unequal size."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedfacet.callbacks.base import Measurement
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.metrics.auc import auc_of
from fedfacet.metrics.group_counts import NAN


@dataclass(eq=False, kw_only=True)
class Auc(Measurement):
    """Measure ``val/auc`` and ``test/auc`` of the global model; see ``auc_of``. It predicts once more than ``Evaluate`` does.

    Args:
        data: the federation's data.
    """

    name = "auc"

    data: FederatedData

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the areas."""
        splits = self.data.splits
        if not self.is_due(federation, round):
            return {f"{split}/auc": NAN for split in splits}
        said = federation.engine.predict(federation.state.model, list(splits.values()))
        y = self.data.dataset.y
        return {f"{name}/auc": auc_of(one.logits, y[splits[name]]) for name, one in zip(splits, said, strict=True)}
