"""Everything that runs where the data lives, bound together; an engine decides when and in which process it runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.local_training import (
    LocalTraining,
    federated_module,
    load_weights,
    train_client,
)
from fedfacet.clients.queries.base import QueryContext
from fedfacet.data.dataset import Dataset
from fedfacet.metrics.group_counts import GroupCounts, count_groups
from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import Answer, ClientTask, ClientUpdate, Partition, Query, State


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
    """

    objective: L.LightningModule
    optimizer: OptimizerFactory
    dataset: Dataset
    partition: Partition
    local: LocalTraining
    transforms: Sequence[UpdateTransform]
    device: torch.device

    @property
    def evaluation_batch_size(self) -> int:
        """Large on an accelerator; on a CPU small enough for a layer's activations to stay in the cache (1.7x measured)."""
        return 64 if self.device.type == "cpu" else 1024

    def data(self, client_id: int) -> ClientData:
        """Return one client's samples."""
        return ClientData(self.dataset, self.partition.indices[client_id], self.device)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Run a client's local training and its transforms."""
        update = train_client(self.objective, self.data(task.client_id), task, self.local)
        for position, transform in enumerate(self.transforms):
            generator = rng.stream(task.seed, "transform", task.round, task.client_id, position)
            update = transform.apply(update, generator)
        return update

    def answer(self, query: Query, task: ClientTask) -> Answer:
        """Have a client answer a query on the broadcast model."""
        model = federated_module(self.objective)
        if query.needs_model:
            load_weights(model, task.broadcast.model)
        context = QueryContext(
            data=self.data(task.client_id),
            model=model,
            make_optimizer=self._make_optimizer,
            batch_size=self.local.batch_size,
            seed=task.seed,
            round=task.round,
            client_id=task.client_id,
        )
        return query.answer(context)

    def _make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return self.optimizer(parameters)

    def evaluate(self, weights: State, indices: NDArray[np.int64]) -> GroupCounts:
        """Count how a model does on some samples of the data set, in eval mode and without gradients."""
        model = federated_module(self.objective)
        load_weights(model, weights)
        model.eval()
        num_groups = self.dataset.num_classes * self.dataset.num_attributes
        correct = torch.zeros(num_groups, dtype=torch.int64, device=self.device)
        total = torch.zeros_like(correct)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.inference_mode():
            for start in range(0, len(indices), step := self.evaluation_batch_size):
                batch = self.dataset.batch(indices[start : start + step], self.device)
                logits = model(batch.x)
                counted = count_groups(
                    logits.argmax(dim=1), batch.y, batch.a, self.dataset.num_classes, self.dataset.num_attributes
                )
                correct += counted[0]
                total += counted[1]
                loss_sum += functional.cross_entropy(logits, batch.y, reduction="sum").double()
        return GroupCounts(tuple(correct.tolist()), tuple(total.tolist()), float(loss_sum))
