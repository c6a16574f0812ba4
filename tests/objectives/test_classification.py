import pytest
import torch
from torch import nn

from fedfacet.corrections import Correction
from fedfacet.losses import generalized_cross_entropy
from fedfacet.objectives.biased import biased_objective
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import SUMMED_GRADIENTS, Batch, Broadcast, ClientEnd, ClientStart


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(6, 1, 2, 2, generator=draw), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 1, 0, 1, 0, 1]))


@pytest.fixture
def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


class Penalty(Correction):
    """A constant, and what a correction is told and tells."""

    provides, requires, curvature, divisible = frozenset({"sent"}), frozenset({"wanted"}), 3.0, False

    def on_client_start(self, parameters, start):
        self.told = (sorted(parameters), start)

    def on_client_end(self, end):
        return {"sent": torch.tensor(end.num_steps)}, {"kept": end.delta["w"]}

    def forward(self, parameters):
        return 5.0 + sum(parameter.sum() for parameter in parameters.values()) * 0


def test_the_loss_is_loss_plus_correction(model, batch):
    plain = ClassificationObjective(model).training_step(batch, 0)
    corrected = ClassificationObjective(model, correction=Penalty()).training_step(batch, 0)
    assert plain.item() == pytest.approx(nn.functional.cross_entropy(model(batch.x), batch.y).item())
    assert (corrected - plain).item() == pytest.approx(5.0)


def test_a_plain_tuple_is_a_batch_too(model, batch):
    objective = ClassificationObjective(model)
    assert torch.equal(objective.training_step(tuple(batch), 0), objective.training_step(batch, 0))


def test_training_never_reads_the_attribute(model, batch):
    objective = ClassificationObjective(model)
    blind = batch._replace(a=torch.full_like(batch.a, 99))
    assert torch.equal(objective.training_step(batch, 0), objective.training_step(blind, 0))


def test_the_biased_model_is_another_loss(model, batch):
    loss = biased_objective(model, q=0.7).training_step(batch, 0)
    assert torch.equal(loss, generalized_cross_entropy(model(batch.x), batch, q=0.7))


@pytest.mark.parametrize("q", [0.0, 1.01])
def test_an_impossible_q_is_refused_before_training(model, q):
    with pytest.raises(ValueError, match=r"Expected `q` in \(0, 1\]"):
        biased_objective(model, q=q)


def test_the_optimizer_is_fresh_and_has_the_trainable_parameters(model):
    model.append(nn.Linear(3, 3).requires_grad_(False))
    objective = ClassificationObjective(model, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.3, momentum=0.9))
    first, second = objective.configure_optimizers(), objective.configure_optimizers()
    assert first is not second
    assert first.param_groups[0]["lr"] == 0.3
    assert [id(p) for p in first.param_groups[0]["params"]] == [id(model[1].weight), id(model[1].bias)]


def test_without_an_optimizer_it_is_plain_sgd(model):
    optimizer = ClassificationObjective(model).configure_optimizers()
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["momentum"] == 0


def test_a_correction_hears_of_start_and_end(model):
    correction = Penalty()
    objective = ClassificationObjective(model, correction=correction)
    start = ClientStart(Broadcast({}), {"kept": torch.tensor(1.0)}, num_steps=7, lr=0.05, lr_factor=0.5)
    objective.on_client_start(start)
    assert correction.told == (["1.bias", "1.weight"], start)
    sent, kept = objective.on_client_end(ClientEnd({"w": torch.tensor(2.0)}, num_steps=7, lr=0.05, step_weight=7.0))
    assert (sent["sent"].item(), kept["kept"].item()) == (7, 2.0)


def test_what_a_correction_says_of_itself_the_objective_says_too(model):
    names = ("provides", "requires", "curvature", "divisible")
    said = [[getattr(ClassificationObjective(model, correction=one), name) for name in names] for one in (Penalty(), None)]
    sgd = {SUMMED_GRADIENTS}
    assert said == [[{"sent", *sgd}, {"wanted"}, 3.0, False], [sgd, set(), 0.0, True]]


def test_without_a_correction_nothing_is_sent_or_kept(model):
    objective = ClassificationObjective(model)
    objective.on_client_start(ClientStart(Broadcast({}), {}, num_steps=7, lr=0.05))
    assert objective.on_client_end(ClientEnd({}, 7, 0.05, 7.0)) == ({}, {})


def test_correction_and_loss_are_not_in_the_state_dict(model):
    objective = ClassificationObjective(model, correction=Penalty())
    assert set(objective.state_dict()) == {"model.1.weight", "model.1.bias"}
    other = ClassificationObjective(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.model[1].weight, model[1].weight)
