"""Against closed forms, and against two passes by hand."""

import copy
from functools import partial

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.objectives.sam import SAMObjective
from fedfacet.types import Batch, Broadcast, ClientStart, ClientTask

SGD = partial(torch.optim.SGD, lr=0.1)


class Point(nn.Module):
    """Says of every sample where its two parameters are."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        self.second = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))

    def forward(self, x):
        return torch.cat([self.first, self.second]).expand(len(x), 3)


class Net(nn.Module):
    """Convolution, running statistics and a head; with a frozen tensor, and a parameter that is no part of the loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.frozen = nn.Parameter(torch.tensor(1.3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x.to(self.frozen.dtype)) * self.frozen)


MATRIX = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]], dtype=torch.float64)


def quadratic(logits, batch):
    return 0.5 * (logits @ MATRIX * logits).sum(dim=1).mean()


def network(dtype=torch.float64):
    with rng.forked(0, "weights"):
        return Net().to(dtype)


def samples(size=8):
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(size, 1, 4, 4, generator=draw), torch.arange(size) % 2, torch.zeros(size, dtype=torch.int64))


def by_hand(model, batch, rho):
    """Two passes, and weights that are moved and put back: return the second pass's gradients."""
    model, frozen = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    functional.cross_entropy(frozen(batch.x), batch.y).backward()
    grads = {name: p.grad for name, p in frozen.named_parameters() if p.grad is not None}
    norm = torch.cat([grad.flatten() for grad in grads.values()]).norm()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in grads:
                parameter += rho * grads[name] / norm
    functional.cross_entropy(model(batch.x), batch.y).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, model


@pytest.mark.parametrize("rho", [0.05, 0.7])
def test_steps_on_a_quadratic_are_those_of_the_closed_form(rho):
    """w <- w - lr A (w + rho A w / |A w|), again and again."""
    own = SAMObjective(Point(), loss=quadratic, rho=rho)
    optimizer, expected = SGD(own.parameters()), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for step in range(5):
        optimizer.zero_grad()
        own.training_step(samples(), step).backward()
        optimizer.step()
        uphill = MATRIX @ expected
        expected = expected - 0.1 * MATRIX @ (expected + rho * uphill / uphill.norm())
        torch.testing.assert_close(torch.cat(list(own.model.parameters())).detach(), expected, rtol=1e-12, atol=0)


def test_the_loss_is_that_uphill():
    own, w = SAMObjective(Point(), loss=quadratic, rho=0.3), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    uphill = w + 0.3 * (MATRIX @ w) / (MATRIX @ w).norm()
    assert own.training_step(samples(), 0).item() == pytest.approx((0.5 * uphill @ MATRIX @ uphill).item(), rel=1e-12)


def test_where_the_loss_is_flat_nothing_moves():
    own = SAMObjective(Point(), loss=lambda logits, batch: (logits * 0).sum(), rho=0.3)
    own.training_step(samples(), 0).backward()
    assert all(parameter.grad.isfinite().all() and not parameter.grad.any() for parameter in own.parameters())


def test_gradients_are_those_of_two_passes_by_hand():
    batch, own = samples(), SAMObjective(network(), rho=0.2)
    expected, other = by_hand(own.model, batch, 0.2)
    own.train().training_step(batch, 0).backward()
    found = {name: p.grad for name, p in own.model.named_parameters() if p.grad is not None}
    assert {name for name in found if found[name].any()} == expected.keys() - {"unused", "frozen"}
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)
    assert own.model.body[1].num_batches_tracked == 1, "only the second pass counts"
    torch.testing.assert_close(own.model.body[1].running_mean, other.body[1].running_mean)
    plain = ClassificationObjective(network()).train()
    plain.training_step(batch, 0).backward()
    assert (plain.model.head.weight.grad - own.model.head.weight.grad).norm() > 1e-3, "or the test could not fail"


@pytest.fixture
def trained(tiny_clients):
    """Return a function: objective -> the update of one client's local training, with momentum."""

    def train(objective):
        clients = tiny_clients(objective=objective, local=LocalTraining(batch_size=4, amount=2))
        return clients.train(ClientTask(1, 3, 0, Broadcast(state.clone(clients.program.module.state_dict()))))

    return train


@pytest.mark.parametrize("correction", [None, ProximalCorrection(mu=1.0)], ids=["plain", "proximal"])
def test_a_rho_of_zero_is_sgd_bit_for_bit(correction, trained, plain):
    optimizer = partial(SGD, momentum=0.9)
    kinds = (partial(SAMObjective, rho=0.0), ClassificationObjective, partial(SAMObjective, rho=0.1))
    zero, sgd, other = (trained(kind(network(torch.float32), correction=correction, optimizer=optimizer)) for kind in kinds)
    assert plain(zero) == plain(sgd)
    assert plain(other) != plain(sgd)
    assert other.metrics["num_seen"] == sgd.metrics["num_seen"] == 32, "samples are counted once"


def test_a_correction_acts_where_the_weights_are():
    batch, correction = samples(), ProximalCorrection(mu=2.0)
    own = SAMObjective(network(), correction=correction, rho=0.2)
    own.on_client_start(ClientStart(Broadcast({}), {}, 1, 0.1, 1.0))
    with torch.no_grad():
        own.model.head.weight += 0.1
    expected, _ = by_hand(own.model, batch, 0.2)
    own.train().training_step(batch, 0).backward()
    torch.testing.assert_close(own.model.head.weight.grad, expected["head.weight"] + 2.0 * 0.1)


def test_clients_side_by_side_train_alike(tiny_clients):
    """Also with running statistics, which only one of the two passes may change."""
    objective = SAMObjective(network(), optimizer=partial(SGD, momentum=0.9), rho=0.1)
    clients = tiny_clients(objective=objective, local=LocalTraining(batch_size=4, amount=2))
    broadcast = Broadcast(state.clone(clients.program.module.state_dict()))
    tasks = [ClientTask(client, 3, 0, broadcast) for client in range(4)]
    expected = [clients.train(task) for task in tasks]
    for ours, theirs in zip(StackedTraining(clients).train_clients(tasks), expected, strict=True):
        for part in ("delta", "buffers"):
            for name, tensor in getattr(theirs, part).items():
                torch.testing.assert_close(getattr(ours, part)[name], tensor, rtol=1e-10, atol=1e-10)


def test_it_trains_under_a_plain_trainer(tmp_path):
    batch, own = samples(), SAMObjective(network(torch.float32), optimizer=SGD, rho=0.2)
    expected, _ = by_hand(own.model, batch, 0.2)
    start = own.model.head.weight.detach().clone()
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*batch), batch_size=8)
    trainer.fit(own, loader, loader)
    torch.testing.assert_close(own.model.head.weight, start - 0.1 * expected["head.weight"])
    assert "train/loss" in trainer.callback_metrics


@pytest.mark.parametrize("rho", [-0.1, float("nan"), float("inf")])
def test_bad_settings_are_refused(rho):
    with pytest.raises(ValueError, match=r"^Expected `objective\.rho` to be 0 or larger, and finite, but got"):
        SAMObjective(Point(), rho=rho)
