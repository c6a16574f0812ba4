"""The objectives under a plain Trainer, and a client's training against one."""

import copy
import itertools

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fedfacet import state
from fedfacet.clients.hooks import federated_module
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.corrections import ProximalCorrection
from fedfacet.objectives.attribute_head import AttributeHeadObjective
from fedfacet.objectives.biased import biased_objective
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientTask

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


def make_objective(name, net):
    if name == "attribute_head":
        backbone = net("batch", dropout=0.3)
        backbone.head = nn.Identity()
        return AttributeHeadObjective(6, backbone=backbone)
    return {
        "classification": lambda: ClassificationObjective(net("batch", dropout=0.1)),
        "proximal": lambda: ClassificationObjective(net("group"), correction=ProximalCorrection(mu=1.0)),
        "biased": lambda: biased_objective(net("group"), q=0.7),
        "attribute_head_on_features": lambda: AttributeHeadObjective(48),
    }[name]()


@pytest.fixture(params=["classification", "proximal", "biased", "attribute_head", "attribute_head_on_features"])
def objective_and_loader(request, net, data):
    samples = samples_of(data.clients[0])
    if request.param == "attribute_head_on_features":
        samples = [sample._replace(x=sample.x.flatten()) for sample in samples]
    return make_objective(request.param, net), DataLoader(samples, batch_size=6)


@lightning_small_talk
def test_every_objective_passes_a_fast_dev_run(objective_and_loader):
    objective, loader = objective_and_loader
    val = loader if isinstance(objective, ClassificationObjective) else None
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
    L.Trainer(max_epochs=30, **TRAINER).fit(objective, loader)
    assert loss() < 0.97 * before


def test_every_objectives_state_dict_is_the_bare_model(objective_and_loader):
    objective, _ = objective_and_loader
    assert objective.state_dict()
    assert {name.split(".")[0] for name in objective.state_dict()} == {"model"}
    assert {f"model.{name}" for name in objective.model.state_dict()} == set(objective.state_dict())


def clients_with(objective, data, local=None):
    return Clients(objective, torch.optim.SGD, data.dataset, data.partition, local or LocalTraining(), (), torch.device("cpu"))


@lightning_small_talk
def test_an_objective_may_go_from_a_trainer_to_a_federation_and_back(net, data):
    objective = ClassificationObjective(net("group"))
    loader = DataLoader(samples_of(data.clients[0]), batch_size=6)
    L.Trainer(max_steps=2, **TRAINER).fit(objective, loader)
    weights = state.clone(objective.model.state_dict())
    task = ClientTask(1, 1, 0, Broadcast(weights))
    update = clients_with(objective, data).train(task)
    expected = clients_with(ClassificationObjective(net("group")), data).train(task)
    assert state.digest(update.delta) == state.digest(expected.delta)
    L.Trainer(max_steps=2, **TRAINER).fit(objective, loader)


@lightning_small_talk
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_a_client_takes_the_steps_that_a_trainer_takes(max_grad_norm, net, data, sgd):
    local = LocalTraining(amount=2, batch_size=8, max_grad_norm=max_grad_norm)
    client, start = data.clients[1], net("batch")
    ours = ClassificationObjective(copy.deepcopy(start), optimizer=sgd)
    clients = clients_with(ours, data, local)
    task = ClientTask(1, 4, 7, Broadcast(state.clone(start.state_dict())))
    update = clients.train(task)

    theirs = ClassificationObjective(copy.deepcopy(start), optimizer=sgd)
    batches = [positions.tolist() for positions in itertools.islice(clients.batches(task), clients.num_steps(task))]
    loader = DataLoader(samples_of(client), batch_sampler=batches)
    trainer = L.Trainer(max_epochs=1, gradient_clip_val=max_grad_norm, **TRAINER)
    trainer.fit(theirs, loader)

    assert trainer.global_step == update.num_steps == 6
    for name, tensor in federated_module(theirs).state_dict().items():
        assert torch.equal(tensor, ours.model.state_dict()[name]), name
