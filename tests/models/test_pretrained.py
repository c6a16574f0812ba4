"""Weights carried from torchvision's networks with BatchNorm into ours with GroupNorm; torchvision's code is the oracle."""

import functools
from functools import partial

import pytest
import torch
from torch import nn
from torchvision.models import MobileNet_V2_Weights, ResNet50_Weights, mobilenet_v2, resnet50, shufflenet_v2_x0_5

from fedfacet import rng
from fedfacet.errors import FedFacetError
from fedfacet.models.mobilenet_v2_gn import MobileNetV2GN
from fedfacet.models.pretrained import load_weights
from fedfacet.models.resnet50 import ResNet50GN

NETWORKS = {
    "mobilenet_v2": (MobileNetV2GN, mobilenet_v2, partial(nn.GroupNorm, 8, eps=1e-6), MobileNet_V2_Weights.IMAGENET1K_V1),
    "resnet50": (ResNet50GN, resnet50, partial(nn.GroupNorm, 32), ResNet50_Weights.IMAGENET1K_V1),
}
EACH = pytest.mark.parametrize("name", ["mobilenet_v2", pytest.param("resnet50", marks=pytest.mark.slow)])
"""One function carries the weights of both; the second is ten times as large."""


@pytest.fixture(autouse=True)
def same_weights_every_time():
    with rng.forked(0, "weights"):
        yield


@pytest.fixture(scope="module")
def saved():
    """Return a function: a network's name -> the state of torchvision's own, with norms that are not what they start from."""

    @functools.cache
    def state_of(name):
        with rng.forked(1, "weights"):
            network = NETWORKS[name][1](num_classes=10)
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.normal_(module.bias)
                    nn.init.normal_(module.running_mean)
        return network.state_dict()

    return state_of


@EACH
def test_it_is_torchvisions_network_with_other_norms(name, saved, tmp_path):
    """Built by torchvision with GroupNorm, and given all but the running statistics, it says the same of every image."""
    ours, original, norm, _ = NETWORKS[name]
    torch.save(saved(name), tmp_path / "weights.pth")
    model = ours(10, weights=str(tmp_path / "weights.pth")).eval()
    oracle = original(num_classes=10, norm_layer=norm).eval()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    oracle.load_state_dict({key: tensor for key, tensor in saved(name).items() if not key.endswith(statistics)}, strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), oracle(x))
        assert not torch.allclose(model(x), ours(10).eval()(x), atol=1e-2), "random weights say something else"


@pytest.mark.parametrize("name", NETWORKS)
def test_imagenet_takes_the_file_in_torchs_cache(name, saved, tmp_path, monkeypatch):
    ours, _, _, imagenet = NETWORKS[name]
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cached = tmp_path / "hub" / "checkpoints" / imagenet.url.rsplit("/", 1)[1]
    cached.parent.mkdir(parents=True)
    torch.save(saved(name), cached)
    model = ours(2, weights="imagenet").state_dict()
    first = next(iter(saved(name).values()))
    assert torch.equal(next(iter(model.values())), first), "the first convolution"
    assert model["head.weight"].shape[0] == 2, "a head of its own"


@EACH
def test_another_networks_weights_are_refused(name, tmp_path):
    torch.save(shufflenet_v2_x0_5(num_classes=10).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(
        FedFacetError, match=r"Expected the weights '.*' to be those of a (MobileNetV2|ResNet-50) of this width"
    ):
        NETWORKS[name][0](10, weights=str(tmp_path / "weights.pth"))


def test_the_first_beginning_that_fits_counts(tmp_path):
    model = nn.Module()
    model.backbone, model.head = nn.Linear(3, 4), nn.Linear(4, 2)
    states = {"fc.weight": torch.ones(2, 4), "fc.bias": torch.ones(2), "weight": torch.ones(4, 3), "bias": torch.ones(4)}
    torch.save(states, tmp_path / "weights.pth")
    renamed = {"fc.": "head.", "": "backbone."}
    load_weights(model, str(tmp_path / "weights.pth"), imagenet=None, renamed=renamed, network="pair")
    assert all((tensor == 1).all() for tensor in model.state_dict().values())


def test_none_changes_nothing():
    model = nn.Linear(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load_weights(model, "none", imagenet=None, renamed={}, network="layer")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
