"""DP-SGD against closed forms, a loop over samples, and plain training."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from fedfacet import rng, state
from fedfacet.build import build
from fedfacet.clients import private_gradients
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.private_gradients import PrivateGradients
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.types import Broadcast, ClientTask

FREE = DPSGD(noise_multiplier=0.0, max_grad_norm=1e9)


@pytest.fixture
def private(tiny_clients):
    """Return a function: privacy and arguments of ``tiny_clients`` -> clients that train privately."""
    return lambda privacy, **others: replace(tiny_clients(**others), privacy=privacy)


def task_of(clients, client_id=0, round=1, seed=0):
    return ClientTask(client_id, round, seed, Broadcast(state.clone(clients.program.tensors)))


def by_a_loop(clients, batch, max_grad_norm):
    """The sum of clipped gradients as the paper writes it: a backward pass per sample."""
    program = clients.program
    total = [torch.zeros_like(parameter) for parameter in program.parameters.values()]
    for i in range(len(batch.y)):
        loss = program.step(type(batch)(*(values[i : i + 1] for values in batch)), 0)
        gradients = torch.autograd.grad(loss, list(program.parameters.values()))
        length = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * min(1.0, max_grad_norm / length)
    return dict(zip(program.parameters, total, strict=True))


@pytest.mark.parametrize("max_grad_norm", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_clipped_sums_are_those_of_a_loop_over_samples(private, monkeypatch, max_grad_norm, rows):
    """However many samples are taken at once."""
    clients = private(DPSGD(max_grad_norm=max_grad_norm))
    numbers = sum(parameter.numel() for parameter in clients.program.parameters.values())
    monkeypatch.setattr(private_gradients, "_FLOATS_AT_ONCE", rows * numbers)
    batch = clients.dataset.batch(clients.partition.indices[1][:13])
    clients.program.train(True)
    sums, loss_sum = PrivateGradients(clients.program, clients.privacy).clipped_sum(batch)
    expected = by_a_loop(clients, batch, max_grad_norm)
    for name, tensor in expected.items():
        assert torch.allclose(sums[name], tensor, atol=1e-6, rtol=1e-4), name
    assert float(loss_sum) == pytest.approx(13 * float(clients.program.step(batch, 0).detach()), rel=1e-5)
    norm_ = state.norm(sums)
    assert norm_ <= 13 * max_grad_norm * (1 + 1e-5)


def test_without_noise_and_bounds_full_batches_are_plain_training(private, tiny_clients):
    """Batches of all samples: five steps of each are the same, up to rounding."""
    arguments = {"local": LocalTraining(unit="steps", amount=5, batch_size=16), "lr": 0.1, "momentum": 0.9}
    plain, ours = tiny_clients(**arguments), private(FREE, **arguments)
    start = task_of(plain).broadcast
    for client_id in range(4):
        expected, found = (clients.train(ClientTask(client_id, 1, 0, start)) for clients in (plain, ours))
        for name, tensor in expected.delta.items():
            assert torch.allclose(found.delta[name], tensor, atol=1e-6), name
        assert found.metrics["num_seen"] == expected.metrics["num_seen"] == 80
        assert found.metrics["loss_sum"] == pytest.approx(expected.metrics["loss_sum"], rel=1e-4)
        assert (found.num_samples, found.num_steps, found.step_weight) == (16, 5, expected.step_weight)


def test_a_step_divides_by_the_batch_that_is_expected(private):
    """One step without noise: -lr / B times the clipped sum over the batch that was drawn, whatever its size."""
    privacy = DPSGD(noise_multiplier=0.0, max_grad_norm=0.3)
    clients = private(privacy, local=LocalTraining(unit="steps", amount=1, batch_size=5), lr=0.1, momentum=0.0)
    sizes = set()
    for round in range(1, 8):
        task = task_of(clients, round=round)
        positions = privacy.batch(rng.stream(0, "private-batches", round, 0, 0), 16, 5)
        update = clients.train(task)
        sizes.add(len(positions))
        clients.program.load(task.broadcast.model)
        if len(positions):
            sums = by_a_loop(clients, clients.dataset.batch(clients.partition.indices[0][positions]), 0.3)
            for name, tensor in sums.items():
                assert torch.allclose(update.delta[name], -0.1 / 5 * tensor, atol=1e-6), name
        assert update.metrics["num_seen"] == len(positions)
    assert len(sizes) > 2


def test_an_empty_batch_is_a_step_of_noise(private, tiny_federation):
    """Batches of one among 16 are empty every third time; a round with nothing but empty ones is a round."""
    clients = private(DPSGD(), local=LocalTraining(unit="steps", amount=1, batch_size=1), lr=0.1, momentum=0.0)
    rounds = [
        round for round in range(1, 30) if not len(clients.privacy.batch(rng.stream(0, "private-batches", round, 0, 0), 16, 1))
    ]
    update = clients.train(task_of(clients, round=rounds[0]))
    assert update.metrics == {"loss_sum": 0.0, "num_seen": 0}
    moved = np.concatenate([tensor.flatten().numpy() for tensor in update.delta.values()])
    assert kstest(moved, norm(scale=0.1).cdf).pvalue > 0.001
    federation = tiny_federation(clients=clients, cohort_size=1, rounds=12)
    assert federation.fit().round == 12


def test_noise_is_gaussian_of_its_size_and_fresh_in_every_step_round_and_client(private):
    """The gradients of an attack on the noise itself: a model whose samples all have gradient 0."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5000))

        def forward(self, x):
            return torch.zeros(len(x), 2) + 0 * self.weight.sum()

    def deltas(steps, *tasks):
        local = LocalTraining(unit="steps", amount=steps, batch_size=4)
        privacy = DPSGD(noise_multiplier=1.5, max_grad_norm=0.2)
        clients = private(privacy, model=lambda *_: Constant(), local=local, lr=1.0, momentum=0.0)
        return [clients.train(task_of(clients, *task)).delta["weight"].numpy() for task in tasks]

    std = 1.5 * 0.2 / 4
    first, other_client, other_round, other_seed = deltas(1, (0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1))
    (three,) = deltas(3, (0, 1, 0))
    for sample in (first, other_client, other_round, other_seed, three / math.sqrt(3)):
        assert kstest(sample, norm(scale=std).cdf).pvalue > 0.001
    for one, another in ((first, other_client), (first, other_round), (first, other_seed), (first, three - first)):
        assert abs(np.corrcoef(one, another)[0, 1]) < 4 / math.sqrt(5000)


def test_training_may_be_put_down_after_any_step(private):
    """By the same bits, with layers that draw random numbers."""

    def model(num_classes, input_shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Dropout(0.5), nn.Linear(6, num_classes))

    clients = private(DPSGD(), model=model, local=LocalTraining(unit="steps", amount=4, batch_size=6))
    task = task_of(clients)
    whole = clients.train(task)
    for stop in (1, 2, 3):
        half = clients.train_part(task, None, stop)
        clients.train(task_of(clients, 2))  # somebody else meanwhile
        again = clients.train_part(task, half, None)
        assert state.digest(again.delta) == state.digest(whole.delta)
        assert again.metrics == whole.metrics


def test_parameters_that_are_shared_or_frozen(private):
    """One gradient of shared ones, none of frozen ones."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
            self.second.weight = self.first.weight
            self.head = nn.Linear(16, 2)
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))

    local = LocalTraining(unit="steps", amount=1, batch_size=16)
    clients = private(FREE, model=lambda *_: Tied(), local=local)
    task = task_of(clients)
    expected, found = (own.train(task) for own in (replace(clients, privacy=None), clients))
    assert expected.delta.keys() == found.delta.keys()
    assert "head.bias" not in found.delta
    for name, tensor in expected.delta.items():
        assert torch.allclose(found.delta[name], tensor, atol=1e-6), name


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("model=resnet8",), "the model normalises samples by their batch"),
        (
            ("model=scaler_cnn", "model.norm=batch", "dataset=cifar10", "partition=iid"),
            "the model normalises samples by their batch",
        ),
        (("correction=proximal",), "correction=proximal adds a term that is no sample's"),
        (("loss=group_penalty",), "loss=group_penalty compares the samples of a batch"),
        (("objective=moon",), "objective=moon may use samples in other ways"),
        (("objective=ditto",), "objective=ditto may use samples in other ways"),
        (("local.max_grad_norm=1",), "set privacy.max_grad_norm"),
        (("compile=true",), "`compile` is set"),
        (("model=mobilenet_v2_gn",), "sample by sample .*torch refuses .*model.stochastic_depth=0"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_any_training(tmp_path, overrides, sentence):
    job, _ = compose_job("train", ["~experiment", "debug=smoke", "privacy=dp_sgd", "callbacks=[]", "logger=[]", *overrides])
    with pytest.raises(ConfigError, match=sentence):
        build(job, tmp_path)
