import pytest
import torch
from torch import nn

from fedfacet.errors import ConfigError
from fedfacet.models.checks import check_inputs
from fedfacet.models.mlp import MLP
from fedfacet.models.resnet8 import ResNet8


def test_a_model_for_images_is_refused_where_inputs_are_vectors():
    model = ResNet8(2, (30,)).train()
    with pytest.raises(
        ConfigError, match=r"^Expected `model=resnet8` to take inputs of shape \(30,\) and type float32, but it .*"
    ):
        check_inputs(model, torch.zeros(1, 30), "`model=resnet8`")
    assert model.training


def test_a_model_is_left_as_it_was():
    """Batch normalisation notes nothing, and nothing is drawn."""
    model = nn.Sequential(nn.BatchNorm1d(30), nn.Dropout(), MLP(2, (30,))).train()
    before, drawn = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state()
    check_inputs(model, torch.ones(4, 30), "`model=x`")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training
