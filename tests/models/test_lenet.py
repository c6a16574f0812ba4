"""The LeNet-like network, and what it has in common with the small one."""

import copy

import pytest
import torch
from torch import nn

from fedfacet.models.lenet import LeNet
from fedfacet.models.small_cnn import SmallCNN


def test_the_layers_are_those_of_the_paper():
    lenet = LeNet(100, (3, 32, 32))
    shapes = [tuple(parameter.shape) for name, parameter in lenet.named_parameters() if name.endswith("weight")]
    assert shapes == [(64, 3, 5, 5), (64, 64, 5, 5), (384, 4096), (192, 384), (100, 192)]
    assert sum(parameter.numel() for parameter in lenet.parameters()) == 1_773_796
    assert [module.kernel_size for module in lenet.modules() if isinstance(module, nn.MaxPool2d)] == [2, 2]
    assert [module.padding for module in lenet.modules() if isinstance(module, nn.Conv2d)] == [(2, 2), (2, 2)]


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 28, 28), (3, 5, 9), (3, 4, 4)])
def test_any_image_of_four_pixels_or_more_fits(shape):
    model = LeNet(5, shape)
    x = torch.rand(2, *shape)
    assert model.features(x).shape == (2, 192)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize("shape", [(80,), (3, 3, 8), (3, 32), (2, 3, 32, 32)])
def test_other_inputs_are_refused(shape):
    with pytest.raises(ValueError, match=r"Expected images \(C, H, W\) of 4x4 pixels or more, but got inputs of shape"):
        LeNet(2, shape)


@pytest.mark.parametrize("make", [LeNet, SmallCNN])
def test_pooling_before_relu_is_pooling_after_it(make):
    """To the last bit, and so are the gradients: the largest of a window is its largest above zero, or nothing is."""
    model = make(5, (3, 12, 12))
    usual = copy.deepcopy(model)
    parts = list(usual.backbone)
    assert [type(part) for part in parts[:6]] == 2 * [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    usual.backbone = nn.Sequential(*(parts[place] for place in (0, 2, 1, 3, 5, 4)), *parts[6:])
    x, y = torch.randn(8, 3, 12, 12), torch.arange(8) % 5
    for network in (model, usual):
        network.train()
        for _ in range(3):
            network.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.1 * parameter.grad
    for ours, theirs in zip(model.parameters(), usual.parameters(), strict=True):
        assert torch.equal(ours, theirs)
