from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedfacet import rng, state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.config import compose_job, make
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.digits import Digits
from fedfacet.data.federated import partition_and_hold_out
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.types import Partition


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class RecordingInputs:
    """Images that remember which of them were fetched, batch by batch."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.fetched = []

    def __len__(self):
        return len(self.tensor)

    def fetch(self, indices):
        self.fetched.append(indices.tolist())
        return self.tensor[torch.from_numpy(indices)]


@pytest.fixture
def tabular():
    """Return a function: rows of pixel values, classes, attributes -> one client who holds them all."""

    def make(rows, y, a=None, num_classes=None):
        y = np.asarray(y, dtype=np.int64)
        a = np.zeros_like(y) if a is None else np.asarray(a, dtype=np.int64)
        pixels = torch.as_tensor(np.asarray(rows), dtype=torch.uint8)
        images = RecordingInputs(pixels.view(len(y), 1, 1, -1))
        dataset = Dataset(
            inputs=images,
            y=y,
            a=a,
            train=np.arange(len(y)),
            test=np.arange(0),
            val=None,
            class_names=tuple(map(str, range(num_classes if num_classes is not None else max(y) + 1))),
            attribute_names=("0", "1"),
            mean=(0.5,),
            std=(0.5,),
        )
        return ClientData(dataset, np.arange(len(y)), torch.device("cpu"))

    return make


@pytest.fixture
def client(tabular):
    draw = np.random.default_rng(0)
    return tabular(draw.integers(0, 256, size=(20, 6)), [0, 1] * 10)


@pytest.fixture
def clients_of():
    """Return a function: objective, samples, settings of local training -> ten clients, each of whom holds these samples."""

    def make(objective, client, **local):
        partition = Partition((client.indices,) * 10)
        return Clients(objective, torch.optim.SGD, client.dataset, partition, LocalTraining(**local), (), client.device)

    return make


@pytest.fixture
def assert_same_update():
    """Return a function that holds an update to another, bit for bit."""

    def compare(ours, expected):
        for name in ("delta", "buffers", "extras", "memory"):
            assert list(getattr(ours, name)) == list(getattr(expected, name))
            assert state.digest(getattr(ours, name)) == state.digest(getattr(expected, name)), name
        for name in ("client_id", "num_samples", "num_steps", "step_weight", "metrics"):
            assert getattr(ours, name) == getattr(expected, name), name

    return compare


@pytest.fixture(scope="session")
def digits():
    """The clients of the offline main job: GSC at a fifth of its size, on scikit-learn's digits."""
    config, _ = compose_job("train", ["experiment=digits_gsc"])
    partitioner = make(config.partition)
    dataset = Digits().load(partitioner.demand)
    partition, val = partition_and_hold_out(dataset, partitioner)
    clients = [ClientData(dataset, indices, torch.device("cpu")) for indices in partition.indices]
    return SimpleNamespace(dataset=dataset, partition=partition, val=val, clients=clients)


@pytest.fixture
def small_cnn():
    """The main job's network, the same every time."""
    with rng.forked(0, "weights"):
        return SmallCNN(2, (3, 8, 8))


@pytest.fixture
def in_memory():
    return InMemoryInputs
