import pytest
import torchvision
from torch import nn

from fedfacet.errors import ConfigError
from fedfacet.models.resnet8 import ResNet8
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.personal import PersonalNormLayers


class Misleading(nn.Module):
    """Names say nothing: a convolution called ``bn``, normalisation called anything."""

    def __init__(self):
        super().__init__()
        self.bn = nn.Conv2d(3, 4, 1)
        self.scale = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4, affine=True))
        self.rms = nn.RMSNorm(4)
        self.plain = nn.InstanceNorm2d(4)  # has no tensors
        self.head = nn.Linear(4, 2)


def test_layers_are_known_by_their_type():
    assert PersonalNormLayers().names(Misleading()) == {
        *("scale.weight", "scale.bias", "scale.running_mean", "scale.running_var", "scale.num_batches_tracked"),
        *("block.0.weight", "block.0.bias", "block.2.weight", "block.2.bias", "block.3.weight", "block.3.bias", "rms.weight"),
    }


def test_batch_norm_of_short_cuts_is_among_them():
    """FedLD's code looks for ``bn`` in a name and misses ``downsample.1``."""
    names = PersonalNormLayers().names(ResNet8(2, (3, 8, 8)))
    assert {name for name in names if "downsample" in name} == {
        f"backbone.{block}.downsample.1.{tensor}"
        for block in (4, 5)
        for tensor in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert len(names) == 9 * 5


def test_torchvisions_own_norm_layers_are_found():
    model = torchvision.models.convnext_tiny(num_classes=2)
    names = PersonalNormLayers().names(model)
    assert "features.0.1.weight" in names  # a LayerNorm2d
    assert "features.1.0.block.2.bias" in names  # a LayerNorm
    assert not [name for name in names if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Conv2d | nn.Linear)]


def test_a_norm_layer_by_itself_is_a_model_too():
    assert PersonalNormLayers().names(nn.LayerNorm(3)) == {"weight", "bias"}


def test_a_model_without_any_is_refused():
    with pytest.raises(ConfigError, match=r"Expected a model with normalisation layers .* SmallCNN has none: .*resnet8"):
        PersonalNormLayers().names(SmallCNN(2, (3, 8, 8)))
