"""How well every client's model does after its local training."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.callbacks.base import UpdatesMeasurement
from fedfacet.clients.personal_memory import local_model
from fedfacet.federation import Federation
from fedfacet.metrics.group_counts import NAN
from fedfacet.types import ClientTask, ClientUpdate, FederationState, State

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

    Source: FedLD's released code, which takes the mean over the clients on the global test set; there all clients take part
    in every round.

    Args:
        splits: name -> positions of samples in the data set; ``"test"`` is read.
        local_holdout: per client the positions of what it holds out; empty, or empty arrays, for nothing.
    """

    name = "personal_evaluate"

    def __init__(
        self, *, splits: Mapping[str, NDArray[np.int64]], local_holdout: Sequence[NDArray[np.int64]], every_n_rounds: int = 1
    ) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        self.test = splits["test"]
        self.local_holdout = tuple(local_holdout) if any(map(len, local_holdout)) else ()

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return the metrics of the clients' models."""
        before, updates = self.take_round()
        num_clients = federation.num_clients
        test, holdout = [NAN] * num_clients, [NAN] * num_clients
        num_never = num_held = num_diverged = NAN
        if self.is_due(federation, round):
            assert before is not None  # `on_updates` came first
            num_never = num_held = num_diverged = 0
            for client_id, model, memory in _models(federation, round, before, updates):
                num_never += model is federation.state.model
                if not state.all_finite(model):  # as the model of a client may be whose update was dropped for it
                    num_diverged += 1
                    continue
                splits = [self.test, *([self.local_holdout[client_id]] if self.local_holdout else [])]
                counts = federation.engine.evaluate(model, splits, memory)
                test[client_id] = counts[0].average_accuracy
                holdout[client_id] = counts[-1].average_accuracy
                num_held += bool(sum(counts[-1].total))
        personal = {"personal/num_never_selected": num_never, "personal/num_diverged": num_diverged}
        metrics = over_clients("personal_test", test) | personal
        if self.local_holdout:
            metrics |= over_clients("personal_holdout", holdout) | {"personal_holdout/num_clients": num_held}
        return metrics


def _models(
    federation: Federation, round: int, before: FederationState, updates: Sequence[ClientUpdate]
) -> Iterator[tuple[int, State, State]]:
    """Yield every client, its model, and what it keeps."""
    for update in updates:
        yield update.client_id, local_model(federation.sent(before, update.client_id), update), update.memory
    trained = {update.client_id for update in updates}
    absent = [client_id for client_id in range(federation.num_clients) if client_id not in trained]
    memory = federation.state.memory
    seen = [client_id for client_id in absent if federation.state.participation_counts[client_id]]
    for first in range(0, len(seen), _AT_ONCE):
        chunk = seen[first : first + _AT_ONCE]
        orders = [(k, round, federation.seed, federation.sent(before, k), memory.get(k, {})) for k in chunk]
        tasks = [ClientTask(*order, lr_factor=federation.lr_factor(round)) for order in orders]
        for task, update in zip(tasks, list(federation.engine.run(tasks)), strict=True):
            yield task.client_id, local_model(task.broadcast, update), update.memory
    yield from ((client_id, federation.state.model, {}) for client_id in absent if client_id not in seen)


def over_clients(name: str, accuracies: Sequence[float]) -> dict[str, float]:
    """Return mean, minimum and standard deviation over the clients that have a value."""
    values = [accuracy for accuracy in accuracies if accuracy == accuracy]
    return {
        f"{name}/acc_mean": fmean(values) if values else NAN,
        f"{name}/acc_min": min(values, default=NAN),
        f"{name}/acc_std": pstdev(values) if values else NAN,
    }
