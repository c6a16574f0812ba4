"""How well the global model knows how sure it may be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_whole
from fedfacet.callbacks.base import Measurement
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.metrics.calibration import calibration_error
from fedfacet.metrics.group_counts import NAN


@dataclass(eq=False, kw_only=True)
class Calibration(Measurement):
    """Measure ``val/ece`` and ``test/ece`` of the global model, its expected calibration error; see ``calibration_error``.

    Where samples have attributes, ``ece_attribute/a0`` and so on are of the samples of one attribute value, and
    ``ece_worst_attribute`` is the largest of them. There is none per class: among the samples of one class even a perfectly
    calibrated model is not as often right as it is sure. It predicts once more than ``Evaluate`` does.

    Args:
        data: the federation's data.
        bins: of confidence, 1 or larger.
    """

    name = "calibration"

    data: FederatedData
    bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("callbacks.calibration.bins", self.bins)

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the errors."""
        splits, dataset = self.data.splits, self.data.dataset
        said = [np.empty((0, dataset.num_classes), np.float32) for _ in splits]
        shown = [np.empty(0, np.int64) for _ in splits]
        if self.is_due(federation, round):
            shown = list(splits.values())
            said = [one.logits for one in federation.engine.predict(federation.state.model, shown)]
        metrics: dict[str, float] = {}
        for split, logits, samples in zip(splits, said, shown, strict=True):
            metrics |= {f"{split}/{name}": value for name, value in self._errors(logits, samples).items()}
        return metrics

    def _errors(self, logits: NDArray[np.float32], samples: NDArray[np.int64]) -> dict[str, float]:
        """Return the errors of some samples of the data set; all are NaN where there are none."""
        y, a, number = self.data.dataset.y[samples], self.data.dataset.a[samples], self.data.dataset.num_attributes
        errors = {"ece": calibration_error(logits, y, bins=self.bins)}
        if number > 1:
            of_each = [calibration_error(logits[a == value], y[a == value], bins=self.bins) for value in range(number)]
            errors |= {f"ece_attribute/a{value}": error for value, error in enumerate(of_each)}
            errors["ece_worst_attribute"] = max((error for error in of_each if not math.isnan(error)), default=NAN)
        return errors
