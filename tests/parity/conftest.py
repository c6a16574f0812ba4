from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.build import build
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.federation import Federation
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.selectors.all import AllSelector
from fedfacet.types import Partition


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    """Sums over threads are part of the numbers; what a plain Trainer draws comes from the global generator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def main_job(tmp_path, job_of):
    """Return a function that builds the offline main job with some overrides, without anything that writes."""

    def make(*overrides):
        config = job_of("experiment=digits_gsc", "callbacks=evaluate", *overrides)
        config.logger = {}
        return build(config, tmp_path)

    return make


@pytest.fixture
def data():
    """Three clients with 30, 17 and 25 noisy images of two classes that a small network can tell apart."""
    draw = np.random.default_rng(5)
    y = draw.integers(2, size=72)
    a = draw.integers(2, size=72)
    pixels = draw.integers(0, 120, size=(72, 3, 4, 4)) + 80 * y[:, None, None, None] + 50 * a[:, None, None, None]
    positions = np.arange(72)
    dataset = Dataset(
        inputs=InMemoryInputs(torch.from_numpy(pixels).to(torch.uint8)),
        y=y,
        a=a,
        train=positions,
        test=positions,
        val=None,
        class_names=("dark", "bright"),
        attribute_names=("plain", "tinted"),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )
    partition = Partition(tuple(np.split(positions, [30, 47])))
    clients = [ClientData(dataset, indices, torch.device("cpu")) for indices in partition.indices]
    return SimpleNamespace(dataset=dataset, partition=partition, clients=clients)


class Net(nn.Module):
    """A network with whatever may go wrong: dropout draws random numbers, batch norm has buffers of both kinds."""

    def __init__(self, norm, dropout=0.0):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(32, 6), nn.ReLU()
        )
        self.head = nn.Linear(6, 2)

    def features(self, x):
        return self.backbone(x)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.fixture
def net():
    """Return a function that makes the same small network every time."""

    def make(norm="batch", dropout=0.0):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return Net({"batch": nn.BatchNorm2d, "group": lambda width: nn.GroupNorm(2, width)}[norm], dropout)

    return make


@pytest.fixture
def sgd():
    return lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.fixture
def federate(data, sgd):
    """Return a function that puts a network and the three clients together; everybody takes part."""

    def make(model, *, aggregator=None, correction=None, partition=data.partition, local=None, selector=None):
        objective = ClassificationObjective(model, correction=correction, optimizer=sgd)
        engine = SequentialEngine(device="cpu")
        local = local if local is not None else LocalTraining(amount=2, batch_size=8)
        engine.setup(Clients(objective, sgd, data.dataset, partition, local, (), torch.device("cpu")))
        return Federation(
            facts=engine.clients.facts,
            engine=engine,
            selector=selector if selector is not None else AllSelector(),
            aggregator=aggregator if aggregator is not None else FedAvg(),
            rounds=100,
            cohort_size=1,
            seed=7,
        )

    return make
