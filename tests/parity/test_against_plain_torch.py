"""A federation against code that has never heard of one."""

import copy

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.clients.local_training import LocalTraining, federated_module, train_client
from fedfacet.corrections.proximal import ProximalCorrection
from fedfacet.objectives.attribute_head import AttributeHeadObjective
from fedfacet.objectives.biased import biased_objective
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientTask, Partition

SEED, BATCH_SIZE, EPOCHS = 7, 8, 2


def plain_sgd(model, dataset, indices, round, *, lr=0.05, momentum=0.9):
    """Train on some samples as a torch tutorial does, on batches that only share their order with the federation's."""
    pixels = dataset.images.tensor[indices].float()
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
        assert not torch.equal(parameter, dict(net(norm).named_parameters())[name])  # it did train


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
def test_averaging_identical_clients_is_the_identity_for_batch_norm_too(num_clients, net, data):
    """K clients that end with the same weights and running statistics make a model that equals each of theirs."""
    objective = ClassificationObjective(net("batch"), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.05))
    start = state.clone(objective.model.state_dict())
    update = train_client(objective, data.clients[0], ClientTask(0, 1, SEED, Broadcast(start)), LocalTraining())
    local = state.clone(objective.model.state_dict())
    after = FedAvg().aggregate(start, [update] * num_clients)
    for name in ("backbone.1.running_mean", "backbone.1.running_var", "backbone.0.weight", "head.bias"):
        assert not torch.equal(start[name], local[name])
        assert torch.allclose(after[name], local[name], rtol=1e-6, atol=1e-7)
    assert after["backbone.1.num_batches_tracked"] == start["backbone.1.num_batches_tracked"] == 0


# --- under a plain Trainer -------------------------------------------------------------------------------------------------

TRAINER = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}

lightning_small_talk = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:The number of training batches",
    "ignore:GPU available but not used",
)


def samples_of(client):
    """Return a client's samples one by one, each a Batch, which torch's own collate function keeps."""
    whole = client.batch(torch.arange(len(client)).numpy())
    return [Batch(*sample) for sample in zip(*whole, strict=True)]


def objectives(net):
    frozen = net("batch", dropout=0.3)
    return {
        "classification": ClassificationObjective(net("batch", dropout=0.1)),
        "proximal": ClassificationObjective(net("group"), correction=ProximalCorrection(mu=1.0)),
        "biased": biased_objective(net("group"), q=0.7),
        "attribute_head": AttributeHeadObjective(6, backbone=frozen.features),
        "attribute_head_on_features": AttributeHeadObjective(48, num_attributes=2),
    }


OBJECTIVES = ["classification", "proximal", "biased", "attribute_head", "attribute_head_on_features"]


@pytest.fixture(params=OBJECTIVES)
def objective_and_loader(request, net, data):
    samples = samples_of(data.clients[0])
    if request.param == "attribute_head_on_features":
        samples = [sample._replace(x=sample.x.flatten()) for sample in samples]
    if request.param == "attribute_head":
        backbone = net("batch", dropout=0.3)
        backbone.head = nn.Identity()
        objective = AttributeHeadObjective(6, backbone=backbone)
    else:
        objective = objectives(net)[request.param]
    return objective, DataLoader(samples, batch_size=6)


@lightning_small_talk
def test_every_objective_passes_a_fast_dev_run(objective_and_loader):
    objective, loader = objective_and_loader
    val = loader if hasattr(type(objective), "validation_step") and isinstance(objective, ClassificationObjective) else None
    L.Trainer(fast_dev_run=True, **TRAINER).fit(objective, loader, val)


@lightning_small_talk
def test_every_objective_learns_under_a_plain_trainer(objective_and_loader):
    objective, loader = objective_and_loader

    def loss():
        objective.trainer = None
        objective.eval()
        with torch.no_grad():
            losses = [objective.training_step(batch, 0).item() * len(batch[1]) for batch in loader]
        objective.train()
        return sum(losses)

    before = loss()
    L.Trainer(max_epochs=8, **TRAINER).fit(objective, loader)
    assert loss() < 0.95 * before


def test_every_objectives_state_dict_is_the_bare_model(objective_and_loader):
    objective, _ = objective_and_loader
    assert objective.state_dict()
    assert {name.split(".")[0] for name in objective.state_dict()} == {"model"}
    assert {f"model.{name}" for name in objective.model.state_dict()} == set(objective.state_dict())


@lightning_small_talk
def test_an_objective_may_go_from_a_trainer_to_a_federation_and_back(net, data):
    objective = ClassificationObjective(net("group"))
    loader = DataLoader(samples_of(data.clients[0]), batch_size=6)
    L.Trainer(max_steps=2, **TRAINER).fit(objective, loader)
    weights = state.clone(objective.model.state_dict())
    update = train_client(objective, data.clients[1], ClientTask(1, 1, 0, Broadcast(weights)), LocalTraining())
    twin = ClassificationObjective(net("group"))
    expected = train_client(twin, data.clients[1], ClientTask(1, 1, 0, Broadcast(weights)), LocalTraining())
    assert state.digest(update.delta) == state.digest(expected.delta)
    L.Trainer(max_steps=2, **TRAINER).fit(objective, loader)


@lightning_small_talk
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_train_client_takes_the_steps_that_a_trainer_takes(max_grad_norm, net, data, sgd):
    local = LocalTraining(amount=EPOCHS, batch_size=BATCH_SIZE, max_grad_norm=max_grad_norm)
    client, start = data.clients[1], net("batch")
    ours = ClassificationObjective(copy.deepcopy(start), optimizer=sgd)
    task = ClientTask(1, 4, SEED, Broadcast(state.clone(start.state_dict())))
    update = train_client(ours, client, task, local)

    theirs = ClassificationObjective(copy.deepcopy(start), optimizer=sgd)
    stream = local.batches(len(client), rng.stream(SEED, "batches", 4, 1))
    batches = [next(stream).tolist() for _ in range(local.num_steps(len(client)))]
    loader = DataLoader(samples_of(client), batch_sampler=batches)
    trainer = L.Trainer(max_epochs=1, gradient_clip_val=max_grad_norm, **TRAINER)
    trainer.fit(theirs, loader)

    assert trainer.global_step == update.num_steps == 6
    for name, tensor in federated_module(theirs).state_dict().items():
        assert torch.equal(tensor, ours.model.state_dict()[name]), name
