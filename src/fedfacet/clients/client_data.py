"""Who has which samples: one client, and all of them."""

import functools
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.clients.local_training import LocalTraining
from fedfacet.data.dataset import Dataset
from fedfacet.errors import DisclosureError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.privacy.base import Privacy
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.transforms import UpdateTransform
from fedfacet.types import Batch, ClientTask, ClientUpdate, Partition, RoundNeeds


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """A view on the data set: what one client holds.

    Attributes:
        dataset: shared by all clients, never copied.
        indices: sorted positions of this client's samples, shape (n_k,).
        device: where batches go.
        memory_format: of the images in a batch.
    """

    dataset: Dataset
    indices: NDArray[np.int64]
    device: torch.device
    memory_format: torch.memory_format = torch.contiguous_format

    def __len__(self) -> int:
        """Return n_k."""
        return len(self.indices)

    @property
    def y(self) -> NDArray[np.int64]:
        """The classes, shape (n_k,)."""
        return self.dataset.y[self.indices]

    @property
    def interaction_matrix(self) -> InteractionMatrix:
        """The true counts per class and attribute, which a real client would not know.

        Raises:
            DisclosureError: if clients do not know the attributes.
        """
        a = self.dataset.a[self.indices]
        if (a < 0).any():
            raise DisclosureError(
                "Expected clients that know the attributes of their samples, but under this `disclosure` nobody does: choose "
                "another method, or a disclosure whose clients know them."
            )
        return InteractionMatrix.from_labels(self.y, a, self.dataset.num_classes, self.dataset.num_attributes)

    def batch(self, positions: NDArray[np.int64]) -> Batch:
        """Return the samples at positions 0 .. n_k - 1 of this client, as they are, on its device."""
        return self.dataset.batch(self.indices[positions], self.device, self.memory_format)

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield all samples in order, the last batch possibly short; by default in batches good for a forward pass."""
        size = batch_size or evaluation_batch_size(self.dataset, self.device)
        for start in range(0, len(self), size):
            yield self.batch(np.arange(start, min(start + size, len(self))))


@functools.lru_cache(maxsize=2)  # with attributes and without
def evaluation_batch_size(dataset: Dataset, device: torch.device) -> int:
    """Return how many samples go through a model at once where no gradients are asked for.

    Many on an accelerator; on a CPU few enough for a layer's activations to stay in the cache (64 images of 3 x 32 x 32 or
    fewer larger ones: 1.7 times as fast as 512), and many where one sample is small.
    """
    if device.type != "cpu":
        return 1024
    return min(4096, max(16, 64 * 3 * 32 * 32 // max(1, math.prod(dataset.input_shape))))


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Who has which data, and what clients do with them.

    Attributes:
        objective: the LightningModule that clients train; one object, used for one client after another.
        optimizer: makes the clients' optimizers, for queries that train something.
        dataset: holds all samples.
        partition: who owns which, of those that take part.
        local: how much a client trains in a round.
        transforms: what happens to an update before it leaves the client, in this order.
        device: where all this happens.
        memory_format: of images in a batch and of the objective's weights.
        precision: as in ``ClientTrainer``.
        compile: as in ``ClientTrainer``.
        personal: as in ``ClientTrainer``.
        other_objectives: of models of other shapes, for an aggregator that sends such models to some clients.
        whole_fingerprint: whether the data set's digest looks at every input.
        privacy: how gradients are made private; ``None`` where they are not.
        server_privacy: how the server makes models private, whose key the noise on answers has too; ``None`` where it does not.
        hides_attributes: whether clients do not know the attributes of their samples.
        held_out: clients that never take part and only measure, numbered after the others; ``None`` for none.
        local_holdout: per client what it never trains on; ``None`` for nothing.
        needs: what a round takes on each client's device; empty without devices.
        owned: per client the positions of what it trains on, those of held-out clients last.
        shown: the data set as clients see it, with the labels that they take for true.
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
    other_objectives: Sequence[L.LightningModule] = ()
    whole_fingerprint: bool = False
    privacy: DPSGD | None = None
    server_privacy: Privacy | None = None
    hides_attributes: bool = False
    held_out: Partition | None = None
    local_holdout: Partition | None = None
    needs: list[RoundNeeds] = field(default_factory=list)
    owned: Sequence[NDArray[np.int64]] = field(init=False)
    shown: Dataset = field(init=False)

    def __post_init__(self) -> None:
        """Look up once who has what."""
        held_out = self.held_out.indices if self.held_out is not None else ()
        object.__setattr__(self, "owned", (*self.partition.indices, *held_out))
        shown = self.dataset.without_attributes if self.hides_attributes else self.dataset
        object.__setattr__(self, "shown", self._relabelled(shown))

    def data(self, client_id: int) -> ClientData:
        """Return one client's samples."""
        return ClientData(self.shown, self.owned[client_id], self.device, self.memory_format)

    def held_out_by(self, client_id: int) -> NDArray[np.int64]:
        """Return the positions of what a client that takes part never trains on."""
        return np.empty(0, np.int64) if self.local_holdout is None else self.local_holdout.indices[client_id]

    def noise_seed(self, seed: int) -> int:
        """Return what a client's noise is drawn from: the run's seed, mixed with the noise key where there is one."""
        privacy = self.privacy or self.server_privacy
        return seed if privacy is None else privacy.seed(seed)

    def _relabelled(self, dataset: Dataset) -> Dataset:
        """Return a data set with the labels that clients take for true."""
        for relabel in (transform.relabelled for transform in self.transforms if transform.relabelled is not None):
            y = dataset.y.copy()
            for client_id, samples in enumerate(self.partition.indices):
                y[samples] = relabel(client_id, y[samples], dataset.num_classes)
            dataset = replace(dataset, y=y)
        return dataset

    def transformed(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Apply what happens to an update before it leaves the client."""
        for position, transform in enumerate(self.transforms):
            generator = rng.stream(task.seed, "transform", task.round, task.client_id, position)
            update = transform.consider(transform.apply(update, generator), task)
        return update
