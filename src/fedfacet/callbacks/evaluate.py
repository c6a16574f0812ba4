"""Measurements of models on samples: each model predicts the same samples once a round, whatever is measured of that."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchmetrics import Metric

from fedfacet.callbacks.base import Measurement
from fedfacet.clients.prediction import Predictions, count
from fedfacet.data.federated import FederatedData
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import GroupCounts, Labels, group_key
from fedfacet.metrics.torch_metric import TorchMetric
from fedfacet.records import RoundResult
from fedfacet.types import State


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a model says of n samples, and what is true of them.

    Attributes:
        logits: shape (n, Y), float32.
        y: true classes, shape (n,).
        a: attribute values, shape (n,).
        counts: of the samples per group and predicted class.
    """

    logits: NDArray[np.float32]
    y: Labels
    a: Labels
    counts: GroupCounts


@dataclass(eq=False, kw_only=True)
class Evaluate(Measurement):
    """Measure the global model on the validation and the test set, per group.

    Metrics, for ``val`` and ``test``: ``loss``, ``acc`` (average over samples), ``acc_adjusted`` (groups weighted by their
    training counts), ``acc_worst_group``, and ``acc_group/y0_a0`` and so on.

    Callbacks of this class and its subclasses share predictions: a model predicts the same samples once a round for all.

    Args:
        data: the federation's data.
        splits: name -> positions of samples; by default the validation and the test set.
        metrics: name -> a metric of torchmetrics, which is measured too; see ``TorchMetric``.

    Raises:
        ConfigError: if a metric does not measure class probabilities, or has a name that is taken.
    """

    name = "evaluate"
    needs_logits = True

    data: FederatedData
    splits: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    metrics: Mapping[str, Metric] | None = None
    _known: dict[Hashable, tuple[Any, Outcome]] = field(default_factory=dict, init=False)
    _of: tuple[int, State] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.splits = self.splits or self.data.splits
        dataset = self.data.dataset
        shape = dataset.num_classes, dataset.num_attributes
        self._more = [TorchMetric(name, metric, *shape) for name, metric in (self.metrics or {}).items()]
        nothing = Predictions(np.empty(0, np.int64), np.empty(0, np.float32), np.empty((0, shape[0]), np.float32))
        self._nothing = self._outcome(nothing, np.empty(0, np.int64))
        taken = self.numbers(self._nothing).keys()
        if twice := [name for metric in self._more for name in metric.names if name in taken]:
            raise ConfigError(
                f"Expected new names in `callbacks.{self.name}.metrics`, but `{twice[0]}` is measured already: give it another "
                "name."
            )

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        outcomes = [self._nothing for _ in self.splits]
        if self.is_due(federation, round):
            outcomes = self.outcomes(federation, federation.state.model, list(self.splits.values()))
        return {
            f"{split}/{name}": value
            for split, outcome in zip(self.splits, outcomes, strict=True)
            for name, value in self.read(outcome).items()
        }

    @property
    def metric_names(self) -> list[str]:
        """What is measured of each split."""
        return list(self.read(self._nothing))

    def read(self, outcome: Outcome) -> dict[str, float]:
        """Return all that is measured of an outcome, by name; NaN where it has no samples."""
        numbers = self.numbers(outcome)
        for metric in self._more:
            numbers |= metric.measure(outcome.logits, outcome.y, outcome.a)
        return numbers

    def numbers(self, outcome: Outcome) -> dict[str, float]:
        """Return what is measured of an outcome besides ``metrics``."""
        counts, num_attributes = outcome.counts, self.data.dataset.num_attributes
        return {
            "loss": counts.loss,
            "acc": counts.average_accuracy,
            "acc_adjusted": counts.adjusted_accuracy(self._group_weights),
            "acc_worst_group": counts.worst_group_accuracy,
            **{f"acc_group/{group_key(group, num_attributes)}": accuracy for group, accuracy in enumerate(counts.accuracies)},
        }

    def outcomes(
        self,
        federation: Federation,
        model: State,
        splits: Sequence[NDArray[np.int64]],
        memory: State | None = None,
        *,
        shared_as: Hashable = None,
    ) -> list[Outcome]:
        """Return what a model says of the samples of some splits.

        Args:
            federation: whose engine predicts, and whose callbacks share predictions until the round ends.
            model: its weights.
            splits: each given by the positions of its samples in the data set.
            memory: what a client keeps, for what this client would say.
            shared_as: the name under which others find the same predictions in this round. The global model has one already;
                the predictions of another model without a name are not shared.
        """
        if model is federation.state.model and not memory:
            shared_as = "global"
        if federation.engine.clients.program.predict_hooks is not None and memory:  # which make other predictions of it
            shared_as = shared_as and (shared_as, "with memory")
        known = self._shared(federation) if shared_as else {}
        missing = [indices for indices in splits if (shared_as, id(indices)) not in known]
        predicted = federation.engine.predict(model, missing, memory) if missing else []
        for indices, predictions in zip(missing, predicted, strict=True):
            known[shared_as, id(indices)] = indices, self._outcome(predictions, indices)
        return [known[shared_as, id(indices)][1] for indices in splits]

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Forget the round's predictions."""
        self._of = None
        self._known.clear()

    @cached_property
    def _group_weights(self) -> list[float]:
        return self.data.group_weights

    def _shared(self, federation: Federation) -> dict[Hashable, tuple[Any, Outcome]]:
        """Return what is known of the state's models, by the name of the model and the identity of the positions."""
        first = next((part for part in federation.callbacks.values() if isinstance(part, Evaluate)), self)
        now = federation.state
        if first._of is None or first._of[0] != now.round or first._of[1] is not now.model:
            first._known.clear()
        first._of = now.round, now.model
        return first._known

    def _outcome(self, predictions: Predictions, indices: NDArray[np.int64]) -> Outcome:
        dataset = self.data.dataset
        return Outcome(predictions.logits, dataset.y[indices], dataset.a[indices], count(dataset, predictions, indices))
