"""A network that does not return a logit per class is refused: its numbers would be counted as those of other groups."""

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate, state
from fedfacet.errors import ConfigError

CLASSES = 3


class Answering(nn.Module):
    """Linear logits of some number of classes, of which ``shape`` makes what the network returns."""

    def __init__(self, num_logits=CLASSES, shape=lambda z: z):
        super().__init__()
        self.linear, self.shape = nn.Linear(4, num_logits), shape

    def forward(self, x):
        return self.shape(self.linear(x))


class Foreign(L.LightningModule):
    """It knows itself what to do with what its network returns."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch.x)[0], batch.y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


WRONG = [
    (Answering(shape=lambda z: (z, z)), r"shape \(B, 3\), but it returns a tuple: fix its `forward`"),
    (Answering(CLASSES + 1), r"but it returns a tensor of shape \(B, 4\)"),
    (Answering(1), r"but it returns a tensor of shape \(B, 1\)"),
    (Answering(1, lambda z: z[:, 0]), r"but it returns a tensor of shape \(B\)"),
    (Answering(shape=lambda z: z[:, :, None]), r"but it returns a tensor of shape \(B, 3, 1\)"),
]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return deal(dataset_from_arrays(rng.normal(size=(60, 4)), np.arange(60) % CLASSES), IIDPartitioner(num_clients=2))


@pytest.mark.parametrize(("network", "message"), WRONG)
def test_ours_is_refused_before_it_trains(network, message, data):
    before = state.digest(network.state_dict())
    with pytest.raises(ConfigError, match=f"Expected Answering to return a logit for each of the 3 classes, .*{message}"):
        federate(data, network)
    assert state.digest(network.state_dict()) == before


def test_that_of_somebody_else_trains_until_it_is_measured(data):
    network = WRONG[0][0]
    federate(data, Foreign(network), callbacks={}).run_round()
    with pytest.raises(ConfigError, match="Expected Foreign to return a logit per class from `forward`, or"):
        federate(data, Foreign(network)).run_round()


@pytest.mark.parametrize(("shape", "warned"), [(lambda z: z.softmax(dim=1), True), (lambda z: z, False)])
def test_a_softmax_at_the_end_is_warned_of(shape, warned, data, caplog):
    federate(data, Answering(shape=shape))
    assert ("Answering seems to return probabilities" in caplog.text) is warned


class Counting(nn.Linear):
    """It counts its forward passes."""

    def __init__(self):
        super().__init__(4, CLASSES)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, CLASSES)), Counting()]
)
def test_the_trial_changes_nothing(network, data):
    """Not the weights, nor what is drawn afterwards."""
    before, drawn = state.digest(network.state_dict()), torch.get_rng_state()
    federate(data, network)
    assert state.digest(network.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), drawn)
