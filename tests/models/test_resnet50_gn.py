import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from fedfacet import rng
from fedfacet.models.resnet50 import ResNet50GN


@pytest.fixture(autouse=True)
def same_weights_every_time():
    with rng.forked(0, "weights"):
        yield


@pytest.fixture(scope="module")
def model():
    with rng.forked(0, "weights"):
        return ResNet50GN(2).eval()


def test_it_has_resnet50s_number_of_parameters(model):
    """torchvision's published 25,557,032 for 1000 classes, whose head has 2048 weights and a bias for each."""
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032 - 998 * 2049 == 23_512_130


def test_every_norm_is_a_group_norm_of_32(model):
    """As in timm's resnet50_gn."""
    norms = [module for module in model.modules() if type(module).__module__ == "torch.nn.modules.normalization"]
    assert len(norms) == 53
    assert {(type(norm), norm.num_groups, norm.eps, norm.affine) for norm in norms} == {(nn.GroupNorm, 32, 1e-5, True)}
    assert list(model.buffers()) == []


def test_features_and_head(model):
    x = torch.randn(2, 3, 64, 64)
    features = model.features(x)
    assert features.shape == (2, 2048)
    assert torch.equal(model(x), model.head(features))
    assert model.backbone[:-1](x).shape == (2, 2048, 2, 2), "a stride of two five times"


def test_names_are_those_of_torchvision_and_timm(model):
    """But for the two prefixes, so that timm's checkpoint fits as it is."""
    with torch.device("meta"):
        theirs = resnet50().state_dict()
    theirs = [name for name in theirs if "running" not in name and "num_batches" not in name]
    ours = [name.removeprefix("backbone.").replace("head.", "fc.") for name in model.state_dict()]
    assert ours == theirs
