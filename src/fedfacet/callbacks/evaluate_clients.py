"""Measurements over clients: of the model that each would use, has trained or holds a part of, on samples of all or its own."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean, pstdev
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.callbacks.evaluate import Evaluate, Outcome
from fedfacet.clients.personal_memory import local_model
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.metrics.group_counts import NAN
from fedfacet.records import FederationState
from fedfacet.types import ClientUpdate, State

_AT_ONCE = 16  # so many clients' models are held at a time
_SPREAD = ("acc", "acc_worst_group", "acc_own")


@dataclass(eq=False, kw_only=True)
class EvaluateClients(Evaluate):
    r"""Measure the model that each client would use, global layers and its own, on the validation and the test set, per group.

    A metric is the mean over all K clients, :math:`\frac{1}{K} \sum_k m_k`. All models are measured on the same samples, so the
    mean of accuracies is the accuracy over all of them. ``acc_worst_group`` is the mean of the clients' worst groups, which may
    be different ones. A client that has not trained yet is measured with the global model.

    Metrics, for ``val`` and ``test``: those of ``Evaluate``; ``acc_own``, whose groups are weighted by the client's own
    training counts, so that it is the accuracy on samples like the client's own; and ``acc_min``, ``acc_max``,
    ``acc_worst_group_min`` and so on, of the worst and of the best client.

    Clients that never take part have ``held_out_clients/acc``, ``.../acc_worst_group`` and ``.../acc_own`` with their extremes,
    of the model that they would be sent.
    """

    measures_held_out_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own_weights = [matrix.counts.ravel().tolist() for matrix in self.data.matrices]
        self._num_taking_part = len(self._own_weights)
        if self.data.held_out_clients is not None:
            never = self.data.matrices_of(self.data.held_out_clients.partition)
            self._own_weights += [matrix.counts.ravel().tolist() for matrix in never]

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' current models."""
        clients = []
        for client_id, own_weights in enumerate(self._own_weights):
            outcomes = [self._nothing for _ in self.splits]
            if self.is_due(federation, round):
                sent = federation.sent(federation.state, client_id).model  # FedPAC's has a head for each
                outcomes = self.outcomes(federation, sent, list(self.splits.values()), federation.state.memory.get(client_id))
            clients.append(
                {
                    f"{split}/{name}": value
                    for split, outcome in zip(self.splits, outcomes, strict=True)
                    for name, value in self._of_client(outcome, own_weights).items()
                }
            )
        taking_part, never = clients[: self._num_taking_part], clients[self._num_taking_part :]
        metrics = {name: fmean(client[name] for client in taking_part) for name in clients[0]} | self._spread(taking_part)
        if never:
            spread = {f"{split}/{name}": fmean(client[f"{split}/{name}"] for client in never) for split, name in self._names}
            for name, value in (spread | self._spread(never)).items():
                split, _, rest = name.partition("/")
                metrics[f"{split}/held_out_clients/{rest}"] = value
        return metrics

    @property
    def _names(self) -> list[tuple[str, str]]:
        return [(split, name) for split in self.splits for name in _SPREAD]

    def _spread(self, clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return what the worst and the best of some clients have."""
        return {
            f"{split}/{name}_{extreme}": float(of([client[f"{split}/{name}"] for client in clients]))
            for split, name in self._names
            for extreme, of in (("min", np.min), ("max", np.max))  # unlike Python's own, NaN where any value is
        }

    def _of_client(self, outcome: Outcome, own_weights: Sequence[float]) -> dict[str, float]:
        return self.read(outcome) | {"acc_own": outcome.counts.adjusted_accuracy(own_weights)}


@dataclass(eq=False, kw_only=True)
class ClientAccuracy(Evaluate):
    """Measures an accuracy per client, and each of ``metrics``, and how they spread over clients."""

    def numbers(self, outcome: Outcome) -> dict[str, float]:
        """Return the accuracy."""
        return {"acc": outcome.counts.average_accuracy}

    @property
    def names(self) -> Sequence[str]:
        """Of what is measured of each client."""
        return list(self.read(self._nothing))


@dataclass(eq=False, kw_only=True)
class ClientFairness(ClientAccuracy):
    """Measure the global model on what every client holds out of its own samples, and how far clients are apart.

    Metrics are those of ``fairness_over_clients``, as ``client_fairness/acc_mean`` and so on. Clients that hold out nothing are
    left out; ``client_fairness/num_clients`` says how many are left.

    Where there are clients that never take part, they are measured likewise, as ``client_fairness/held_out_clients/acc_mean``
    and so on. ``client_fairness/held_out_clients/gap`` is the mean over clients that may take part minus the mean over those
    that never do. Nobody has trained on any of the samples of either, so that it is the participation gap of Yuan, Morningstar,
    Ning and Singhal, What Do We Mean by Generalization in Federated Learning?, ICLR 2022, arXiv:2110.14216.

    Source: Li et al., Fair Resource Allocation in Federated Learning, arXiv:1905.10497, section 4.1, table 1; accuracy parity
    between clients in the thesis, table 20.

    A metric of ``metrics`` has ``client_fairness/f1_mean``, ``f1_min`` and ``f1_std`` over the clients.

    Raises:
        FedFacetError: if no client holds out anything, of those that may take part or of those that never do.
    """

    name = "client_fairness"
    measures_held_out_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        new = self.data.held_out_clients
        self._splits = [positions for positions in self.data.local_holdout if len(positions)]
        self._never = [positions for positions in (new.local_holdout if new is not None else ()) if len(positions)]
        if not self._splits or (new is not None and not self._never):
            raise FedFacetError(
                "Expected clients that hold out some of their samples for callbacks.client_fairness, but nobody "
                f"{'does' if not self._splits else 'of partition.held_out_clients does'}: set partition.local_holdout=0.2, or "
                "leave the callback out."
            )

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the current global model."""
        splits = [*self._splits, *self._never]
        outcomes = [self._nothing for _ in splits]
        if self.is_due(federation, round):
            outcomes = self.outcomes(federation, federation.state.model, splits)
        measured = [self.read(outcome) for outcome in outcomes]
        taking_part, never = measured[: len(self._splits)], measured[len(self._splits) :]
        ours, new = (np.array([one["acc"] for one in some]) for some in (taking_part, never))
        more = [name for name in self.names if name != "acc"]
        metrics = _under("client_fairness", fairness_over_clients(ours)) | over_clients("client_fairness", taking_part, more)
        if never:
            name = "client_fairness/held_out_clients"
            metrics |= _under(name, fairness_over_clients(new) | {"gap": float(ours.mean() - new.mean())})
            metrics |= over_clients(name, never, more)
        return metrics


def fairness_over_clients(accuracies_K: NDArray[np.float64]) -> dict[str, float]:
    r"""Return how accuracies :math:`x_k` in [0, 1] spread over K clients, each of which counts the same.

    ``acc_mean``, ``acc_std`` (population), ``acc_worst`` and ``acc_best``; ``acc_worst_tenth`` and ``acc_best_tenth``, means
    over the :math:`\lceil K / 10 \rceil` clients at either end; ``jain``, the index
    :math:`(\sum_k x_k)^2 / (K \sum_k x_k^2)` of Jain et al. (1984), from 1 / K (one client has everything) to 1 (all alike);
    ``cosine``, its square root, the cosine between the accuracies and a constant. These two are NaN where all accuracies are 0.
    ``num_clients`` is K.

    Example:
        >>> fairness = fairness_over_clients(np.array([0.9, 0.6, 0.9]))
        >>> [round(fairness[name], 4) for name in ("acc_mean", "acc_std", "acc_worst_tenth", "jain")]
        [0.8, 0.1414, 0.6, 0.9697]
    """
    x, number = np.sort(accuracies_K), len(accuracies_K)
    tenth = ceil(number / 10)
    squares = float((x**2).sum())
    jain = float(x.sum()) ** 2 / (number * squares) if squares else float("nan")
    return {
        "acc_mean": float(x.mean()),
        "acc_std": float(x.std()),
        "acc_worst": float(x[0]),
        "acc_best": float(x[-1]),
        "acc_worst_tenth": float(x[:tenth].mean()),
        "acc_best_tenth": float(x[-tenth:].mean()),
        "jain": jain,
        "cosine": jain**0.5,
        "num_clients": float(number),
    }


@dataclass(eq=False, kw_only=True)
class TrainedModels(ClientAccuracy, UpdatesMeasurement):
    """Measures models of a round's clients as they are after local training."""

    @property
    def test(self) -> NDArray[np.int64]:
        """The positions of the test samples."""
        return self.data.dataset.test

    def _name_of(self, federation: Federation, update: ClientUpdate) -> Hashable:
        """Return under which name others look for the model of an update; nothing where no other does."""
        several = sum(isinstance(part, TrainedModels) for part in federation.callbacks.values()) > 1
        return ("trained", update.client_id) if several else None


@dataclass(eq=False, kw_only=True)
class PersonalEvaluate(TrainedModels):
    """Measure the clients' models as they are after the round's local training, before anything is averaged.

    A client of the round has the model that its update is made from, with what ``transforms=`` do to it. One that took part
    before is trained on what this round's clients were sent, with its own memory, and nothing of that is kept. One that has
    never taken part has no model of its own and is measured with the new global model. A model with NaN or infinite entries has
    diverged: it is left out and counted.

    Metrics, each client counting the same: ``personal_test/acc_mean``, ``acc_min`` and ``acc_std`` (population) of accuracies
    on the global test set, which is what FedLD's table 1 shows; ``personal_holdout/...`` likewise on what each client holds
    out of its own samples, where ``partition.local_holdout`` is larger than 0, over the ``personal_holdout/num_clients`` that
    hold out something; ``personal/num_never_selected``, the clients measured with the global model; ``personal/num_diverged``,
    those left out.

    Where there are clients that never take part, each has the model that it comes to if it trains for once on what this round's
    clients were sent; nothing of that is kept, and nobody else sees it. ``personal_test/held_out_clients/acc_mean`` and so on
    are of these models, ``.../gap`` is the mean over the other clients minus theirs, and
    ``personal/held_out_clients/num_diverged`` counts those left out.

    Source: FedLD's released code, which takes the mean over the clients on the global test set; there all clients take part
    in every round.
    """

    name = "personal_evaluate"
    measures_held_out_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        new = self.data.held_out_clients
        never = new.local_holdout if new is not None else ()
        self._holds_out = any(map(len, self.data.local_holdout))
        self._holdouts = (*self.data.local_holdout, *never) if self._holds_out else ()
        self._num_new = len(never)

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' models."""
        before, updates = self.take_round()
        ours = new = _Measured()
        if self.is_due(federation, round):
            assert before is not None  # `on_updates` came first
            ours = self._measured(federation, self._models(federation, before, updates))
            beyond = range(federation.num_clients, federation.num_clients + self._num_new)
            new = self._measured(federation, _trained(federation, before, beyond))
        metrics = over_clients("personal_test", ours.test, self.names)
        metrics |= {"personal/num_never_selected": ours.num_never, "personal/num_diverged": ours.num_diverged}
        if self._holds_out:
            metrics |= over_clients("personal_holdout", ours.holdout, self.names)
            metrics["personal_holdout/num_clients"] = ours.num_held
        if self._num_new:
            metrics |= self._beside("personal_test", ours.test, new.test)
            metrics["personal/held_out_clients/num_diverged"] = new.num_diverged
            if self._holds_out:
                metrics |= self._beside("personal_holdout", ours.holdout, new.holdout)
                metrics["personal_holdout/held_out_clients/num_clients"] = new.num_held
        return metrics

    def _measured(self, federation: Federation, models: Iterable[tuple[int, State, State, Hashable]]) -> "_Measured":
        found = _Measured(num_never=0, num_held=0, num_diverged=0)
        for client_id, model, memory, shared_as in models:
            found.num_never += model is federation.state.model
            if not state.all_finite(model):  # as the model of a client may be whose update was dropped for it
                found.num_diverged += 1
                continue
            splits = [self.test, *self._holdouts[client_id : client_id + 1]]
            test, *holdout = self.outcomes(federation, model, splits, memory, shared_as=shared_as)
            found.test.append(self.read(test))
            found.holdout += map(self.read, holdout)
            found.num_held += any(len(one.y) for one in holdout)
        return found

    def _models(
        self, federation: Federation, before: FederationState, updates: Sequence[ClientUpdate]
    ) -> Iterator[tuple[int, State, State, Hashable]]:
        """Yield every client that may take part, its model, what it keeps, and the name by which the model is shared."""
        for update in updates:
            sent = federation.sent(before, update.client_id)
            yield update.client_id, local_model(sent, update), update.memory, self._name_of(federation, update)
        trained = {update.client_id for update in updates}
        absent = [client_id for client_id in range(federation.num_clients) if client_id not in trained]
        seen = [client_id for client_id in absent if federation.state.participation_counts[client_id]]
        yield from _trained(federation, before, seen)
        yield from ((client_id, federation.state.model, {}, None) for client_id in absent if client_id not in seen)

    def _beside(self, name: str, ours: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return what clients that never take part come to, and how far their mean lies below the others'."""
        key = f"{name}/held_out_clients"
        metrics, mean = over_clients(key, new, self.names), over_clients(name, ours, ["acc"])[f"{name}/acc_mean"]
        return metrics | {f"{key}/gap": mean - metrics[f"{key}/acc_mean"]}


@dataclass(slots=True)
class _Measured:
    """What is measured of some clients' models, and how many of them are of a kind; NaN where nothing was measured."""

    test: list[dict[str, float]] = field(default_factory=list)
    holdout: list[dict[str, float]] = field(default_factory=list)
    num_never: float = NAN
    num_held: float = NAN
    num_diverged: float = NAN


def _trained(
    federation: Federation, before: FederationState, client_ids: Sequence[int]
) -> Iterator[tuple[int, State, State, Hashable]]:
    """Train some clients on what a round's clients were sent, for the measurement alone; yield as ``_models`` does."""
    memory = federation.state.memory
    for first in range(0, len(client_ids), _AT_ONCE):
        chunk = client_ids[first : first + _AT_ONCE]
        tasks = [replace(federation.order(before, k), memory=memory.get(k, {})) for k in chunk]
        for task, update in zip(tasks, list(federation.engine.run(tasks)), strict=True):
            yield task.client_id, local_model(task.broadcast, update), update.memory, None


@dataclass(eq=False, kw_only=True)
class SubmodelEvaluate(TrainedModels):
    """Measure each client's part of the model on the global test set, as it was received and as it is after local training.

    Metrics, each client of the round counting the same: ``received_test/acc_mean``, ``acc_min`` and ``acc_std`` (population) of
    the parts as the clients were sent them, which is the thesis' client accuracy; ``trained_test/...`` of the same parts after
    local training, which is the model that its attacks see; per rate that occurs, ``received_test/acc_mean_rate_0.5`` and so
    on. ``submodel/covered`` is the share of the model's trainable parameters that somebody of the round held. A model with NaN
    or infinite entries is left out.

    Source: the thesis, sections 4.7.3 (clients' accuracy) and 4.5 (what is attacked), and its released code.
    """

    name = "submodel_evaluate"

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' parts."""
        before, updates = self.take_round()
        held = federation.find(Submodels)
        parts = held.parts if held is not None else None
        rates = {1.0, *(parts.levels if parts is not None else ())}
        found: dict[str, list[tuple[float, dict[str, float]]]] = {"received_test": [], "trained_test": []}
        covered = NAN
        if before is not None and self.is_due(federation, round):
            known: dict[int, tuple[State, dict[str, float]]] = {}  # clients with equal parts are sent one object
            for update in updates:
                rate = 1.0 if parts is None else float(parts.rates(round)[update.client_id])
                sent = federation.sent(before, update.client_id)
                if id(sent.model) not in known:
                    known[id(sent.model)] = sent.model, self._of_test(federation, sent.model)
                found["received_test"].append((rate, known[id(sent.model)][1]))
                trained = self._of_test(federation, local_model(sent, update), self._name_of(federation, update))
                found["trained_test"].append((rate, trained))
            covered = _covered(federation, before, updates)
        metrics = {"submodel/covered": covered}
        for moment, measured in found.items():
            metrics |= over_clients(moment, [numbers for _, numbers in measured], self.names)
            for rate in sorted(rates, reverse=True):
                of_rate = over_clients(moment, [numbers for one, numbers in measured if one == rate], self.names)
                metrics |= {f"{moment}/{name}_mean_rate_{rate:g}": of_rate[f"{moment}/{name}_mean"] for name in self.names}
        return metrics

    def _of_test(self, federation: Federation, model: State, shared_as: Hashable = None) -> dict[str, float]:
        """Return the numbers of the test set; NaN where a weight is."""
        finite = state.all_finite(model)
        outcome = self.outcomes(federation, model, [self.test], shared_as=shared_as)[0] if finite else self._nothing
        return self.read(outcome)


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


def over_clients(name: str, measured: Sequence[Mapping[str, float]], metrics: Iterable[str]) -> dict[str, float]:
    """Return mean, minimum and standard deviation of each metric over the clients that have a value."""
    found: dict[str, float] = {}
    for metric in metrics:
        values = [value for one in measured if (value := one[metric]) == value]
        found |= {
            f"{name}/{metric}_mean": fmean(values) if values else NAN,
            f"{name}/{metric}_min": min(values, default=NAN),
            f"{name}/{metric}_std": pstdev(values) if values else NAN,
        }
    return found


def _under(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}/{metric}": value for metric, value in metrics.items()}
