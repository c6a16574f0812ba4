"""How well the parts of the model do that clients hold."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.callbacks.personal_evaluate import over_clients
from fedfacet.clients.personal_memory import local_model
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.metrics.group_counts import NAN
from fedfacet.types import ClientUpdate, FederationState, State


class SubmodelEvaluate(UpdatesMeasurement):
    """Measure each client's part of the model on the global test set, as it was received and as it is after local training.

    Metrics, each client of the round counting the same: ``received_test/acc_mean``, ``acc_min`` and ``acc_std`` (population) of
    the parts as the clients were sent them, which is the thesis' client accuracy; ``trained_test/...`` of the same parts after
    local training, which is the model that its attacks see; per rate that occurs, ``received_test/acc_mean_rate_0.5`` and so
    on. ``submodel/covered`` is the share of the model's trainable parameters that somebody of the round held. A model with NaN
    or infinite entries is left out.

    Source: the thesis, sections 4.3 and 4.5, and its released code.

    Args:
        splits: name -> positions of samples in the data set; ``"test"`` is read.
    """

    name = "submodel_evaluate"

    def __init__(self, *, splits: Mapping[str, NDArray[np.int64]], every_n_rounds: int = 1) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        self.test = splits["test"]

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' parts."""
        before, updates = self.take_round()
        held = federation.find(Submodels)
        parts = held.parts if held is not None else None
        rates = {1.0, *(parts.levels if parts is not None else ())}
        found: dict[str, dict[float, list[float]]] = {
            moment: {rate: [] for rate in sorted(rates, reverse=True)} for moment in ("received_test", "trained_test")
        }
        covered = NAN
        if before is not None and self.is_due(federation, round):
            known: dict[int, tuple[State, float]] = {}  # clients with equal parts are sent one object
            for update in updates:
                rate = 1.0 if parts is None else float(parts.rates(round)[update.client_id])
                sent = federation.sent(before, update.client_id)
                if id(sent.model) not in known:
                    known[id(sent.model)] = sent.model, self._accuracy(federation, sent.model)
                found["received_test"][rate].append(known[id(sent.model)][1])
                found["trained_test"][rate].append(self._accuracy(federation, local_model(sent, update)))
            covered = _covered(federation, before, updates)
        metrics = {"submodel/covered": covered}
        for moment, by_rate in found.items():
            metrics |= over_clients(moment, [value for of_rate in by_rate.values() for value in of_rate])
            for rate, of_rate in by_rate.items():
                finite = [value for value in of_rate if value == value]
                metrics[f"{moment}/acc_mean_rate_{rate:g}"] = fmean(finite) if finite else NAN
        return metrics

    def _accuracy(self, federation: Federation, model: State) -> float:
        return federation.engine.evaluate(model, [self.test])[0].average_accuracy if state.all_finite(model) else NAN


def _covered(federation: Federation, before: FederationState, updates: Sequence[ClientUpdate]) -> float:
    """Return the share of trainable parameters that somebody held."""
    submodels = federation.find(Submodels)
    if not updates or submodels is None:
        return 1.0 if updates else 0.0
    counts = {name: torch.zeros_like(before.model[name]) for name in federation.facts.parameters}
    for update in updates:
        submodels.parts.count(counts, before.model, update.client_id, before.round + 1)
    held = sum(int((tensor > 0).sum()) for tensor in counts.values())
    return held / sum(tensor.numel() for tensor in counts.values())
