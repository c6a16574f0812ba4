"""ResNet-50 with batch normalisation; torchvision's own is the oracle."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from fedfacet import rng
from fedfacet.errors import FedFacetError
from fedfacet.models.resnet50 import ResNet50
from fedfacet.personal import PersonalNormLayers


@pytest.fixture(autouse=True)
def same_weights_every_time():
    with rng.forked(0, "weights"):
        yield


@pytest.fixture(scope="module")
def original():
    """torchvision's network with statistics that are not what they start from."""
    with rng.forked(1, "weights"):
        network = resnet50(num_classes=3)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


def without(original, endings, tmp_path):
    """Return a file of torchvision's network that lacks some of its tensors."""
    state = original.state_dict()
    torch.save({name: tensor for name, tensor in state.items() if not name.endswith(endings)}, tmp_path / "weights.pth")
    return str(tmp_path / "weights.pth")


def test_files_older_than_the_count_of_batches_fit(original, tmp_path):
    model = ResNet50(3, weights=without(original, "num_batches_tracked", tmp_path)).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), original(x))


def test_statistics_must_be_there(original, tmp_path):
    """The twin with GroupNorm has none: running means of 0 would be silently wrong."""
    with pytest.raises(FedFacetError, match=r"'backbone\.bn1\.running_mean' and 105 more tensors are missing"):
        ResNet50(3, weights=without(original, ("running_mean", "running_var", "num_batches_tracked"), tmp_path))


def test_fedbn_keeps_all_of_its_normalisation():
    """The released code of FedLD goes by names with `bn`, and misses that of the short cuts."""
    with torch.device("meta"):
        names = PersonalNormLayers().names(ResNet50(3))
    assert len(names) == 53 * 5
    assert "backbone.layer1.0.downsample.1.running_var" in names


@pytest.mark.parametrize("frozen", [False, True])
def test_it_is_torchvisions_network_whose_statistics_can_be_frozen_while_scale_and_shift_train(original, tmp_path, frozen):
    model = ResNet50(3, weights=without(original, (), tmp_path), frozen_statistics=frozen)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032 - 997 * 2049
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x = torch.randn(2, 3, 64, 64)
    model.eval()
    with torch.no_grad():
        evaluated = model(x)
        assert torch.equal(evaluated, original(x))
        assert model.features(x).shape == (2, 2048)
    model.train()
    assert model.training
    trained = model(x)
    assert torch.equal(trained, evaluated) == frozen
    changed = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    assert changed == (set() if frozen else set(before))
    trained.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
