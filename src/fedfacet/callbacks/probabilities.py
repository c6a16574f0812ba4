"""What the global model's class probabilities are worth: the area under the ROC curve, and the calibration error."""

import math
from dataclasses import dataclass

from fedfacet.arguments import check_whole
from fedfacet.callbacks.evaluate import Evaluate, Outcome
from fedfacet.metrics.auc import auc_of
from fedfacet.metrics.calibration import calibration_error
from fedfacet.metrics.group_counts import NAN


@dataclass(eq=False, kw_only=True)
class Auc(Evaluate):
    """Measure ``val/auc`` and ``test/auc`` of the global model; see ``auc_of``."""

    name = "auc"

    def numbers(self, outcome: Outcome) -> dict[str, float]:
        """Return the area."""
        return {"auc": auc_of(outcome.logits, outcome.y)}


@dataclass(eq=False, kw_only=True)
class Calibration(Evaluate):
    """Measure ``val/ece`` and ``test/ece`` of the global model, its expected calibration error; see ``calibration_error``.

    Where samples have attributes, ``ece_attribute/a0`` and so on are of the samples of one attribute value, and
    ``ece_worst_attribute`` is the largest of them. There is none per class: among the samples of one class even a perfectly
    calibrated model is not as often right as it is sure.

    Args:
        bins: of confidence, 1 or larger.
    """

    name = "calibration"

    bins: int = 15

    def __post_init__(self) -> None:
        check_whole("callbacks.calibration.bins", self.bins)
        super().__post_init__()

    def numbers(self, outcome: Outcome) -> dict[str, float]:
        """Return the errors of all samples and of those of each attribute value."""
        logits, y, a, number = outcome.logits, outcome.y, outcome.a, self.data.dataset.num_attributes
        errors = {"ece": calibration_error(logits, y, bins=self.bins)}
        if number > 1:
            of_each = [calibration_error(logits[a == value], y[a == value], bins=self.bins) for value in range(number)]
            errors |= {f"ece_attribute/a{value}": error for value, error in enumerate(of_each)}
            errors["ece_worst_attribute"] = max((error for error in of_each if not math.isnan(error)), default=NAN)
        return errors
