"""A federation against code that has never heard of one."""

import pytest
import torch
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.corrections import ProximalCorrection
from fedfacet.types import Broadcast, ClientTask, Partition

SEED, BATCH_SIZE, EPOCHS = 7, 8, 2


def plain_sgd(model, dataset, indices, round, *, lr=0.05, momentum=0.9):
    """Train on some samples as a torch tutorial does, on batches that only share their order with the federation's."""
    pixels = dataset.inputs.tensor[indices].float().contiguous()
    x = (pixels - 0.5 * 255) / (0.25 * 255)
    y = torch.from_numpy(dataset.y[indices])
    generator = rng.stream(SEED, "batches", round, 0)
    velocity = {name: None for name, _ in model.named_parameters()}
    model.train()
    for _ in range(EPOCHS):
        order = torch.from_numpy(generator.permutation(len(indices)))
        for positions in order.split(BATCH_SIZE):
            model.zero_grad()
            functional.cross_entropy(model(x[positions]), y[positions]).backward()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    old = velocity[name]
                    velocity[name] = parameter.grad.clone() if old is None else old.mul_(momentum).add_(parameter.grad)
                    parameter.add_(velocity[name], alpha=-lr)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_fedavg_with_one_client_is_plain_sgd(norm, net, data, federate):
    """Bit for bit, once said that what travels is local - global: w + (w_k - w) may miss w_k by a rounding."""
    federation = federate(net(norm), partition=Partition(data.partition.indices[:1]))
    stepwise, plain = net(norm), net(norm)
    for round in (1, 2, 3):
        federation.run_round()
        start = state.clone(stepwise.state_dict())
        plain_sgd(stepwise, data.dataset, data.partition.indices[0], round)
        for name, tensor in stepwise.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(start[name] + (tensor - start[name]))
            else:
                tensor.copy_(start[name])  # the server keeps its own counters
            assert torch.equal(tensor, federation.state.model[name]), (round, name)
        plain_sgd(plain, data.dataset, data.partition.indices[0], round)
    for name, parameter in plain.named_parameters():
        assert torch.allclose(parameter, federation.state.model[name], rtol=0, atol=1e-5)
    assert not torch.allclose(plain.head.weight, net(norm).head.weight, atol=1e-2)  # it did train


def models_after(federation, rounds=3):
    for _ in range(rounds):
        federation.run_round()
    return federation.state.model


def test_fedprox_without_mu_is_no_correction(net, federate):
    ours = models_after(federate(net(), correction=ProximalCorrection(mu=0.0)))
    assert state.digest(ours) == state.digest(models_after(federate(net())))
    acting = models_after(federate(net(), correction=ProximalCorrection(mu=0.5)))
    assert state.digest(ours) != state.digest(acting)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_fedavgm_without_momentum_is_fedavg(weighting, net, federate):
    plain = models_after(federate(net(), aggregator=FedAvg(weighting=weighting)))
    ours = models_after(federate(net(), aggregator=FedAvgM(momentum=0.0, server_lr=1.0, weighting=weighting)))
    assert state.digest(ours) == state.digest(plain)
    moving = models_after(federate(net(), aggregator=FedAvgM(momentum=0.1, server_lr=1.0, weighting=weighting)))
    assert state.digest(moving) != state.digest(plain)


@pytest.mark.parametrize("num_clients", [1, 2, 3, 7])
def test_averaging_identical_clients_is_the_identity_for_batch_norm_too(num_clients, net, federate):
    """K clients that end with the same weights and running statistics make a model that equals each of theirs."""
    federation = federate(net("batch"))
    clients, start = federation.engine.clients, federation.state.model
    update = clients.train(ClientTask(0, 1, SEED, Broadcast(start)))
    local = state.clone(clients.objective.model.state_dict())
    _, after = FedAvg().aggregate({}, start, [update] * num_clients)
    for name in ("backbone.1.running_mean", "backbone.1.running_var", "backbone.0.weight", "head.bias"):
        assert not torch.equal(start[name], local[name])
        assert torch.allclose(after[name], local[name], rtol=1e-6, atol=1e-7)
    assert after["backbone.1.num_batches_tracked"] == start["backbone.1.num_batches_tracked"] == 0
