"""Everything that runs where the data lives, bound together; an engine decides when and in which process it runs."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.local_training import HalfTrained, LocalTraining, planned_steps, train_part
from fedfacet.clients.personal_memory import starting_weights
from fedfacet.clients.probed_clients import ProbedClients
from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.workbench import Workbench
from fedfacet.data.dataset import Dataset
from fedfacet.metrics.group_counts import GroupCounts, count_groups
from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import Answer, ClientTask, ClientUpdate, Partition, Query, State


class Predictions(NamedTuple):
    """What a model says of some samples; parts of a split go together again by concatenation.

    Attributes:
        labels: predicted classes, shape (n,), int64.
        losses: each sample's cross entropy, shape (n,), float32.
    """

    labels: NDArray[np.int64]
    losses: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ClientRuntime:
    """The clients of a federation.

    Attributes:
        objective: the LightningModule that every client trains; one object, used for one client after another.
        optimizer: makes the clients' optimizers, for queries that train something.
        dataset: holds all samples.
        partition: who owns which.
        local: how much a client trains in a round.
        transforms: what happens to an update before it leaves the client, in this order.
        device: where all this happens.
        memory_format: of images in a batch and of the objective's weights.
        precision: as in ``Workbench``.
        compile: as in ``Workbench``.
        personal: as in ``Workbench``.
        bench: where every client's training takes place.
        probed: clients of the current round that have taken their first steps to answer a query.
    """

    objective: L.LightningModule
    optimizer: OptimizerFactory
    dataset: Dataset
    partition: Partition
    local: LocalTraining
    transforms: Sequence[UpdateTransform]
    device: torch.device
    memory_format: torch.memory_format = torch.contiguous_format
    precision: str = "32-true"
    compile: bool = False
    personal: Set[str] = frozenset()
    bench: Workbench = field(init=False)
    probed: ProbedClients = field(init=False, default_factory=ProbedClients)

    def __post_init__(self) -> None:
        """Look up once what every client's training needs."""
        bench = Workbench(self.objective, precision=self.precision, compile=self.compile, personal=self.personal)
        object.__setattr__(self, "bench", bench)

    def data(self, client_id: int) -> ClientData:
        """Return one client's samples."""
        return ClientData(self.dataset, self.partition.indices[client_id], self.device, self.memory_format)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Run a client's local training and its transforms."""
        update = self.train_part(task, None, None)
        assert isinstance(update, ClientUpdate)  # nothing stopped it
        return update

    def train_part(self, task: ClientTask, half: HalfTrained | None, stop: int | None) -> ClientUpdate | HalfTrained:
        """Do a part of what ``train`` does; ``half`` and ``stop`` are ``local_training.train_part``'s."""
        data = self.data(task.client_id)
        if half is None and self.bench.divisible:
            half = self.probed.find(task, planned_steps(self.local, len(data), task) if stop is None else stop)
        outcome = train_part(self.bench, data, task, self.local, half=half, stop=stop)
        return outcome if isinstance(outcome, HalfTrained) else self.transformed(outcome, task)

    def transformed(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Apply what happens to an update before it leaves the client."""
        for position, transform in enumerate(self.transforms):
            generator = rng.stream(task.seed, "transform", task.round, task.client_id, position)
            update = transform.apply(update, generator)
        return update

    def answer(self, query: Query, task: ClientTask) -> Answer:
        """Have a client answer a query on the broadcast model."""
        if query.needs_model:
            self.bench.load(starting_weights(task))
        data = self.data(task.client_id)
        context = QueryContext(
            data=data,
            model=self.bench.lend(),
            make_optimizer=self._make_optimizer,
            batch_size=self.local.batch_size,
            seed=task.seed,
            round=task.round,
            client_id=task.client_id,
            weights=starting_weights(task),
            train_until=partial(self._train_until, task),
            looked_at=len(data) if self.bench.data_hooks is not None else 0,
        )
        try:
            return query.answer(context)
        except Exception as error:
            error.add_note(f"It happened to client {task.client_id} in round {task.round}, asked by {type(query).__name__}.")
            raise

    def _train_until(self, task: ClientTask, num_steps: int) -> HalfTrained:
        """Take the first steps of a client's training, and keep what they lead to in case the client is selected."""
        data = self.data(task.client_id)
        planned = planned_steps(self.local, len(data), task)
        half = train_part(self.bench, data, task, self.local, stop=min(num_steps, planned))
        assert isinstance(half, HalfTrained)  # it was stopped
        self.bench.lend()  # for whatever the query does next
        if num_steps < planned and self.bench.divisible:
            self.probed.keep(task, half)
        return half

    def _make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return self.optimizer(parameters)

    def predict(self, weights: State, splits: Iterable[NDArray[np.int64]]) -> Predictions:
        """Return what a model says of some samples of the data set, in eval mode and without gradients.

        Args:
            weights: of the model.
            splits: positions of samples in the data set; no batch holds samples of two of them.

        Returns:
            The predictions of all splits, one after another.
        """
        self.bench.load(weights)
        self.bench.train(False)
        labels, losses = [], []
        with torch.inference_mode():
            for indices in splits:
                for batch in ClientData(self.dataset, indices, self.device, self.memory_format).batches():
                    logits = self.bench.forward(batch.x)
                    labels.append(logits.argmax(dim=1))
                    losses.append(functional.cross_entropy(logits, batch.y, reduction="none"))
            if not labels:
                return Predictions(np.empty(0, np.int64), np.empty(0, np.float32))
            return Predictions(torch.cat(labels).cpu().numpy(), torch.cat(losses).float().cpu().numpy())

    def count(self, predictions: Predictions, splits: Sequence[NDArray[np.int64]]) -> list[GroupCounts]:
        """Compare the predictions of some splits with what the data set knows, per group; return the counts of each split."""
        dataset, counts = self.dataset, []
        ends = np.cumsum([len(indices) for indices in splits])[:-1]
        for indices, *said in zip(splits, *(np.split(values, ends) for values in predictions), strict=True):
            labels, y, a = (torch.from_numpy(values) for values in (said[0], dataset.y[indices], dataset.a[indices]))
            correct, total = count_groups(labels, y, a, dataset.num_classes, dataset.num_attributes)
            counts.append(GroupCounts(tuple(correct.tolist()), tuple(total.tolist()), float(said[1].sum(dtype=np.float64))))
        return counts
