"""Any class of torchmetrics that measures class probabilities, on whole sets of samples."""

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from fedfacet.errors import ConfigError, first_line
from fedfacet.metrics.group_counts import NAN, Labels


class TorchMetric:
    """Gives the values of a metric names: one number has the metric's own, entries of a tensor or a dict have a path below it.

    The metric gets the probabilities of all classes, shape (n, Y), and the true classes, shape (n,). Where there are two
    classes and it refuses that, it gets the probabilities of the second class, shape (n,). A metric whose ``update`` has an
    argument ``attribute`` gets the attribute values too, shape (n,).

    Args:
        name: of the metric.
        metric: of torchmetrics.
        num_classes: Y.
        num_attributes: A.

    Raises:
        ConfigError: if it is no metric, or if it does not make numbers of class probabilities.

    Example:
        >>> from torchmetrics.classification import MulticlassF1Score
        >>> f1 = TorchMetric("f1", MulticlassF1Score(num_classes=2), 2, 1)
        >>> logits, y = np.array([[1, 0], [0, 1], [0, 1]], dtype=np.float32), np.array([0, 1, 0])
        >>> {name: round(value, 4) for name, value in f1.measure(logits, y, np.zeros(3, np.int64)).items()}
        {'f1': 0.6667}
    """

    def __init__(self, name: str, metric: Metric, num_classes: int, num_attributes: int) -> None:
        if not isinstance(metric, Metric):
            raise ConfigError(
                f"Expected the metric `{name}` to be an object of torchmetrics, but got {type(metric).__name__}: name a class "
                "such as torchmetrics.classification.MulticlassF1Score."
            )
        self.name, self.metric = name, metric
        self._takes_attribute = "attribute" in inspect.signature(metric.update).parameters
        y = np.tile(np.arange(num_classes), 2)
        logits, a = np.eye(num_classes, dtype=np.float32)[y[::-1]], np.arange(len(y)) % num_attributes
        faults = []
        # One of several classes would take the probabilities of the second class for names of classes.
        is_binary = num_classes == 2 and not hasattr(metric, "num_classes")
        for self._of_second_class in (False, True) if is_binary else (False,):
            try:
                self.names = tuple(self._numbers(logits, y, a))
                return
            except Exception as error:  # of whatever kind the metric raises
                faults.append(first_line(error))
        raise ConfigError(
            f"Expected the metric `{name}` to make numbers of class probabilities, but {type(metric).__name__} says: "
            f"{faults[0]} Fix its arguments, or choose another."
        )

    def measure(self, logits: NDArray[np.float32], y: Labels, a: Labels) -> dict[str, float]:
        """Return the numbers of n samples, NaN without any, or if a logit is not finite; logits have the shape (n, Y)."""
        found = self._numbers(logits, y, a) if len(y) and np.isfinite(logits).all() else {}
        return {name: found.get(name, NAN) for name in self.names}

    def _numbers(self, logits: NDArray[np.float32], y: Labels, a: Labels) -> dict[str, float]:
        probabilities = torch.as_tensor(logits, dtype=torch.float64).softmax(dim=1).float()
        given = [probabilities[:, 1] if self._of_second_class else probabilities, torch.as_tensor(y)]
        self.metric.reset()
        self.metric.update(*given, *([torch.as_tensor(a)] if self._takes_attribute else []))
        return _flat(self.name, self.metric.compute())


def _flat(name: str, value: Any) -> dict[str, float]:
    """Return the numbers in what a metric has computed, by name."""
    if isinstance(value, dict):
        return {path: number for key, inner in value.items() for path, number in _flat(f"{name}/{key}", inner).items()}
    if not isinstance(value, Tensor):
        raise TypeError(f"Expected a tensor, but got {type(value).__name__}: choose a metric that returns numbers.")
    return {
        "/".join([name, "_".join(map(str, index))]) if index else name: float(number)
        for index, number in np.ndenumerate(value.double().cpu().numpy())
    }
