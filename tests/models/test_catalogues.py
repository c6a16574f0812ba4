"""Networks of torchvision and timm: ours compute what theirs do, and what does not fit is said before the run."""

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from fedfacet import rng
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.models.base import without_head
from fedfacet.models.timm import Timm
from fedfacet.models.torchvision import Torchvision

SIDES = {
    "resnet18": 32, "alexnet": 64, "vgg11": 32, "densenet121": 32, "efficientnet_b0": 32, "convnext_tiny": 32,
    "mobilenet_v3_small": 32, "shufflenet_v2_x0_5": 32, "regnet_y_400mf": 32, "mnasnet0_5": 32, "googlenet": 32,
    "swin_t": 32, "vit_b_16": 224,
}  # fmt: skip
"""One of each of torchvision's families, and the side of its images."""

LARGE = ("vgg11", "vit_b_16", "alexnet", "swin_t", "convnext_tiny")
"""Those of 28 million weights and more."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in SIDES])
@pytest.mark.filterwarnings("ignore:The default weight initialization of GoogleNet")
def test_a_network_of_torchvision_computes_what_it_did(name, tmp_path):
    x = torch.randn(2, 3, SIDES[name], SIDES[name], generator=torch.Generator().manual_seed(0))
    with rng.forked(0, "theirs"):
        further = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        theirs = torchvision.models.get_model(name, num_classes=3, **further).eval()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = Torchvision(3, tuple(x.shape[1:]), name=name, weights=str(tmp_path / "theirs.pth")).eval()
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(ours.head(ours.features(x)), theirs(x))


@pytest.mark.parametrize("name", LARGE)
def test_a_large_network_of_torchvision_has_its_layers_and_a_head(name):
    """Shapes alone, on the device that holds no numbers."""
    with torch.device("meta"):
        ours, theirs = (
            Torchvision(3, (3, SIDES[name], SIDES[name]), name=name),
            torchvision.models.get_model(name, num_classes=3),
        )
        x = torch.empty(2, 3, SIDES[name], SIDES[name])
    assert ours.head(ours.features(x)).shape == ours(x).shape == (2, 3)
    shapes = [tensor.shape for tensor in theirs.state_dict().values()]
    assert sorted(tensor.shape for tensor in ours.state_dict().values()) == sorted(shapes)
    assert ours.head.weight.shape == shapes[-2]


@pytest.mark.parametrize("name", ["resnet10t", "test_vit", "mobilenetv3_small_050", "test_convnext"])
def test_a_network_of_timm_computes_what_it_did(name, tmp_path):
    timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
    side = 160 if name == "test_vit" else 32
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with rng.forked(0, "theirs"):
        theirs = timm.create_model(name, num_classes=3).eval()
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours = Timm(3, tuple(x.shape[1:]), name=name, weights=str(tmp_path / "theirs.safetensors")).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        assert torch.equal(ours.head(ours.features(x)), ours(x))


@pytest.mark.parametrize(
    ("make", "settings", "shape", "error", "said"),
    [
        (
            Torchvision,
            {"name": "resnet_18"},
            (3, 32, 32),
            ConfigError,
            "80 classifiers, but got 'resnet_18': the nearest.*resnet18",
        ),
        (Torchvision, {"name": "squeezenet1_0"}, (3, 32, 32), ConfigError, "squeezenet1_0 to be linear.*AdaptiveAvgPool2d"),
        (Torchvision, {"arguments": {"depth": 3}}, (3, 32, 32), ConfigError, "`model.arguments` that resnet18 takes.*depth"),
        (Torchvision, {"weights": "nowhere.pth"}, (3, 32, 32), FedFacetError, "'nowhere.pth' is none of them"),
        (Torchvision, {}, (1, 28, 28), ValueError, r"\(3, H, W\).*\(1, 28, 28\)"),
        (Timm, {"name": "resnet_18"}, (3, 32, 32), ConfigError, "got 'resnet_18': choose .*resnet18"),
        (Timm, {"arguments": {"depth": 3}}, (3, 32, 32), ConfigError, "timm takes, but it says of 'resnet18'"),
        (Timm, {"weights": "nowhere.pth"}, (3, 32, 32), FedFacetError, "'nowhere.pth' is none of them"),
        (Timm, {}, (30,), ValueError, r"\(C, H, W\).*\(30,\)"),
    ],
)
def test_what_does_not_fit_is_said(make, settings, shape, error, said):
    if make is Timm:
        pytest.importorskip("timm", reason="the extra `timm` is not installed")
    with pytest.raises(error, match=said):
        make(2, shape, **settings)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pth")
    with pytest.raises(FedFacetError, match="to be those of a resnet18"):
        Torchvision(2, (3, 32, 32), weights=str(tmp_path / "other.pth"))


def test_grey_images_go_into_a_network_of_timm():
    pytest.importorskip("timm", reason="the extra `timm` is not installed")
    assert Timm(4, (1, 28, 28), name="resnet10t")(torch.zeros(2, 1, 28, 28)).shape == (2, 4)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ConfigError, match=r'package timm for model=timm.*pip install "fedfacet\[timm\]"'):
        Timm(2, (3, 32, 32))


def test_a_nested_layer_is_taken_out_by_its_name():
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    layer, place = without_head(network, "mine")
    assert (layer.out_features, place) == (2, "1.1")
    assert network(torch.zeros(1, 3)).shape == (1, 4)


@pytest.mark.parametrize(
    ("network", "arguments"),
    [
        (Torchvision, {"arguments": {"weights": "DEFAULT"}}),
        (Torchvision, {"arguments": {"pretrained": True}}),
        (Timm, {"name": "hf-hub:theirs/model"}),
        (Timm, {"name": "local-dir:theirs"}),
        (Timm, {"arguments": {"checkpoint_path": "theirs.pth"}}),
    ],
)
def test_a_network_without_weights_fetches_and_reads_none(network, arguments):
    if network is Timm:
        pytest.importorskip("timm", reason="the extra `timm` is not installed")
    with pytest.raises(ConfigError, match=r"`model\.(name|arguments)"):
        network(2, (3, 32, 32), weights="none", **arguments)
