import pytest
import torch
from torch import nn

from fedfacet import state
from fedfacet.objectives.attribute_head import AttributeHeadObjective
from fedfacet.types import Batch


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(8, 5, generator=draw), torch.full((8,), 7), torch.tensor([0, 1] * 4))


@pytest.fixture
def backbone():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_it_learns_the_attribute_and_never_reads_the_class(batch):
    objective = AttributeHeadObjective(5)
    expected = nn.functional.cross_entropy(objective.model(batch.x), batch.a)
    assert objective.training_step(batch, 0).item() == pytest.approx(expected.item())
    assert torch.equal(objective.training_step(batch._replace(y=batch.y * 0), 0), objective.training_step(batch, 0))


def test_the_backbone_stays_as_it_is(batch, backbone):
    objective = AttributeHeadObjective(4, backbone=backbone, optimizer=lambda ps: torch.optim.SGD(ps, lr=1.0))
    before, head = state.clone(backbone.state_dict()), state.clone(objective.model.state_dict())
    objective.train()
    optimizer = objective.configure_optimizers()
    for _ in range(3):
        optimizer.zero_grad()
        objective.training_step(batch, 0).backward()
        optimizer.step()
    assert state.digest(backbone.state_dict()) == state.digest(before)  # nor its running statistics
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert not torch.equal(objective.model.weight, head["weight"])


def test_features_are_those_of_eval_mode(batch, backbone):
    objective = AttributeHeadObjective(4, backbone=backbone).train()
    assert torch.equal(objective(batch.x), objective(batch.x))
    backbone.eval()
    assert torch.equal(objective(batch.x), objective.model(backbone(batch.x)))


def test_the_backbone_is_neither_saved_nor_optimized(backbone):
    objective = AttributeHeadObjective(4, num_attributes=3, backbone=backbone)
    assert {name: tuple(tensor.shape) for name, tensor in objective.state_dict().items()} == {
        "model.weight": (3, 4),
        "model.bias": (3,),
    }
    assert len(objective.configure_optimizers().param_groups[0]["params"]) == 2
