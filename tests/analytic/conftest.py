from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.federation import Federation
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Partition


class Quadratic(L.LightningModule):
    """Somebody else's LightningModule, which knows nothing of federations.

    A point w in the plane; a sample x of class h costs h / 2 * ||w - x||^2, so a client whose samples are all of class h has
    the gradient h * (w - c) with c the mean of its samples. In float64, so that closed forms can be held to 1e-12.
    """

    def __init__(self, lr, momentum=0.0):
        super().__init__()
        self.point = nn.Parameter(torch.tensor([20.0, -3.0], dtype=torch.float64))
        self.lr = lr
        self.momentum = momentum

    def training_step(self, batch, batch_idx):
        x, curvature, _ = batch
        squares = (self.point - x.flatten(1)).square().sum(dim=1)
        return {"loss": (curvature / 2 * squares).mean()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


@pytest.fixture
def quadratic():
    return Quadratic


@pytest.fixture
def points():
    """Return a function: (class, samples of shape (n, 2)) per client -> their data set and partition."""

    def make(*clients):
        labels = np.concatenate([np.full(len(samples), label) for label, samples in clients])
        pixels = torch.tensor(np.concatenate([samples for _, samples in clients]), dtype=torch.uint8)
        positions = np.arange(len(labels))
        dataset = Dataset(
            inputs=InMemoryInputs(pixels.view(-1, 1, 1, 2)),
            y=labels,
            a=np.zeros_like(labels),
            train=positions,
            test=positions[:0],
            val=None,
            class_names=tuple("0123456789"),
            attribute_names=("none",),
            mean=(0.0,),
            std=(1 / 255,),  # so that a pixel's value is what the model sees
        )
        cuts = np.cumsum([len(samples) for _, samples in clients])[:-1]
        return SimpleNamespace(dataset=dataset, partition=Partition(tuple(np.split(positions, cuts))))

    return make


@pytest.fixture
def federate():
    """Return a function that puts an objective, its clients and an aggregator together; everybody takes part by default.

    All take ``steps`` steps, or with ``steps=None`` one on each of their samples.
    """

    def make(objective, data, *, steps, aggregator=None, selector=None, transforms=(), rounds=1000):
        engine = SequentialEngine(device="cpu")
        local = LocalTraining(batch_size=1) if steps is None else LocalTraining(unit="steps", amount=steps, batch_size=100)
        engine.setup(
            Clients(objective, torch.optim.SGD, data.dataset, data.partition, local, transforms, device=torch.device("cpu"))
        )
        return Federation(
            facts=engine.clients.facts,
            engine=engine,
            selector=selector if selector is not None else AllSelector(),
            aggregator=aggregator if aggregator is not None else FedAvg(),
            rounds=rounds,
            cohort_size=1,
            seed=0,
        )

    return make
