"""How well every client's model does after its local training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.clients.personal_memory import local_model
from fedfacet.data.held_out_clients import HeldOutClients
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import NAN
from fedfacet.types import ClientUpdate, FederationState, State

_AT_ONCE = 16  # so many clients' models are held at a time


class PersonalEvaluate(UpdatesMeasurement):
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

    Args:
        splits: name -> positions of samples in the data set; ``"test"`` is read.
        local_holdout: per client the positions of what it holds out; empty, or empty arrays, for nothing.
        held_out_clients: those that never take part; ``None`` for none.
    """

    name = "personal_evaluate"
    measures_held_out_clients: ClassVar[bool] = True

    def __init__(
        self,
        *,
        splits: Mapping[str, NDArray[np.int64]],
        local_holdout: Sequence[NDArray[np.int64]],
        held_out_clients: HeldOutClients | None = None,
        every_n_rounds: int = 1,
    ) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        self.test = splits["test"]
        self.local_holdout = tuple(local_holdout) if any(map(len, local_holdout)) else ()
        never = held_out_clients.local_holdout if held_out_clients is not None else ()
        self._holdouts = (*self.local_holdout, *never) if self.local_holdout else ()
        self._num_new = len(never)

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' models."""
        before, updates = self.take_round()
        ours = new = _Measured()
        if self.is_due(federation, round):
            assert before is not None  # `on_updates` came first
            ours = self._measured(federation, _models(federation, round, before, updates))
            beyond = range(federation.num_clients, federation.num_clients + self._num_new)
            new = self._measured(federation, _trained(federation, round, before, beyond))
        metrics = over_clients("personal_test", ours.test)
        metrics |= {"personal/num_never_selected": ours.num_never, "personal/num_diverged": ours.num_diverged}
        if self.local_holdout:
            metrics |= over_clients("personal_holdout", ours.holdout) | {"personal_holdout/num_clients": ours.num_held}
        if self._num_new:
            metrics |= _beside("personal_test", ours.test, new.test)
            metrics["personal/held_out_clients/num_diverged"] = new.num_diverged
            if self.local_holdout:
                metrics |= _beside("personal_holdout", ours.holdout, new.holdout)
                metrics["personal_holdout/held_out_clients/num_clients"] = new.num_held
        return metrics

    def _measured(self, federation: Federation, models: Iterable[tuple[int, State, State]]) -> "_Measured":
        found = _Measured(num_never=0, num_held=0, num_diverged=0)
        for client_id, model, memory in models:
            found.num_never += model is federation.state.model
            if not state.all_finite(model):  # as the model of a client may be whose update was dropped for it
                found.num_diverged += 1
                continue
            splits = [self.test, *([self._holdouts[client_id]] if self._holdouts else [])]
            counts = federation.engine.evaluate(model, splits, memory)
            found.test.append(counts[0].average_accuracy)
            found.holdout.append(counts[-1].average_accuracy)
            found.num_held += bool(sum(counts[-1].total))
        return found


@dataclass(slots=True)
class _Measured:
    """Some clients' accuracies, and how many of them are of a kind; NaN where nothing was measured."""

    test: list[float] = field(default_factory=list)
    holdout: list[float] = field(default_factory=list)
    num_never: float = NAN
    num_held: float = NAN
    num_diverged: float = NAN


def _models(
    federation: Federation, round: int, before: FederationState, updates: Sequence[ClientUpdate]
) -> Iterator[tuple[int, State, State]]:
    """Yield every client that may take part, its model, and what it keeps."""
    for update in updates:
        yield update.client_id, local_model(federation.sent(before, update.client_id), update), update.memory
    trained = {update.client_id for update in updates}
    absent = [client_id for client_id in range(federation.num_clients) if client_id not in trained]
    seen = [client_id for client_id in absent if federation.state.participation_counts[client_id]]
    yield from _trained(federation, round, before, seen)
    yield from ((client_id, federation.state.model, {}) for client_id in absent if client_id not in seen)


def _trained(
    federation: Federation, round: int, before: FederationState, client_ids: Sequence[int]
) -> Iterator[tuple[int, State, State]]:
    """Train some clients on what a round's clients were sent, for the measurement alone; yield as ``_models`` does."""
    memory = federation.state.memory
    for first in range(0, len(client_ids), _AT_ONCE):
        chunk = client_ids[first : first + _AT_ONCE]
        tasks = [replace(federation.order(before, k), memory=memory.get(k, {})) for k in chunk]
        for task, update in zip(tasks, list(federation.engine.run(tasks)), strict=True):
            yield task.client_id, local_model(task.broadcast, update), update.memory


def _beside(name: str, ours: Sequence[float], new: Sequence[float]) -> dict[str, float]:
    """Return what clients that never take part come to, and how far their mean lies below the others'."""
    key = f"{name}/held_out_clients"
    metrics = over_clients(key, new)
    return metrics | {f"{key}/gap": over_clients(name, ours)[f"{name}/acc_mean"] - metrics[f"{key}/acc_mean"]}


def over_clients(name: str, accuracies: Sequence[float]) -> dict[str, float]:
    """Return mean, minimum and standard deviation over the clients that have a value."""
    values = [accuracy for accuracy in accuracies if accuracy == accuracy]
    return {
        f"{name}/acc_mean": fmean(values) if values else NAN,
        f"{name}/acc_min": min(values, default=NAN),
        f"{name}/acc_std": pstdev(values) if values else NAN,
    }
