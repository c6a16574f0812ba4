import pytest
import torch
from torch import nn

from fedfacet.models.mlp import MLP


@pytest.mark.parametrize("shape", [(30,), (5, 6), (3, 8, 8)])
def test_inputs_of_any_shape_are_flattened(shape):
    model = MLP(3, shape, hidden=[7, 5])
    x = torch.randn(4, *shape)
    assert model.features(x).shape == (4, 5)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert torch.equal(model(x), model(x.flatten(1).view(x.shape)))


def test_without_hidden_layers_it_is_logistic_regression():
    model = MLP(3, (30,), hidden=[])
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
    x = torch.randn(4, 30)
    assert torch.equal(model(x), nn.functional.linear(x, model.head.weight, model.head.bias))


@pytest.mark.parametrize("width", [0, -1, 2.5, True])
def test_impossible_widths_are_refused(width):
    with pytest.raises(ValueError, match=r"`model\.hidden` to be a whole number, 1 or larger"):
        MLP(2, (30,), hidden=[8, width])
