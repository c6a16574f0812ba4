"""A small residual network with batch normalisation."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock

from fedfacet.models.base import Network
from fedfacet.types import ChannelPlan

_PLACES = ((1, 3), (2, 4), (3, 5))
"""Of the three blocks in the backbone."""


class ResNet8(Network):
    """Eight weighted layers: a 3x3 convolution, three residual blocks of two each, a linear head; about 78 000 parameters.

    The smallest of the networks that He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385,
    section 4.2, make for small images (6 n + 2 layers, here n = 1), of torchvision's blocks: the second and third block halve
    the sides and double the channels, their short cuts are 1x1 convolutions (the paper's option B; on CIFAR it pads with
    zeros).

    Its running statistics make it the network to tell FedBN (``personal=norm_layers``) from FedAvg.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), any H and W.
        width: channels of the first block, 1 or larger; the others have two and four times as many, which are the features.
            Three numbers are those of the three blocks.
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int], *, width: int | Sequence[int] = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width] if isinstance(width, int) else list(width)
        if len(widths) != 3 or min(widths) < 1:
            raise ValueError(f"Expected `model.width` to be 1 or larger, but got {width}: give a number or three.")
        first, second, third = widths
        self.backbone = nn.Sequential(
            nn.Conv2d(input_shape[0], first, 3, padding=1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
            BasicBlock(first, first),
            BasicBlock(first, second, stride=2, downsample=_short_cut(first, second)),
            BasicBlock(second, third, stride=2, downsample=_short_cut(second, third)),
        )
        self.head = nn.Linear(third, num_classes)
        self.shapes, self.widths = (num_classes, input_shape), widths
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def channel_plan(self) -> ChannelPlan:
        """Which of its channels a client may lack: those inside a block, and those that its short cut adds up."""
        sizes = {f"{kind}{block}": size for block, size in enumerate(self.widths, 1) for kind in ("inner", "sum")}
        axes: dict[str, tuple[str | None, ...]] = {"head.weight": (None, "sum3")}
        for layer, group, before in [
            ("0 1", "sum1", None),
            *((f"{place}.conv1 {place}.bn1", f"inner{block}", f"sum{max(1, block - 1)}") for block, place in _PLACES),
            *((f"{place}.conv2 {place}.bn2", f"sum{block}", f"inner{block}") for block, place in _PLACES),
            *((f"{place}.downsample.0 {place}.downsample.1", f"sum{block}", f"sum{block - 1}") for block, place in _PLACES[1:]),
        ]:
            conv, norm = layer.split()
            axes[f"backbone.{conv}.weight"] = (group, before)
            axes |= {f"backbone.{norm}.{name}": (group,) for name in ("weight", "bias", "running_mean", "running_var")}
        return ChannelPlan(sizes, axes)

    def narrowed(self, sizes: Mapping[str, int]) -> "ResNet8":
        """Return a new model like this one with other numbers of channels, as many inside a block as behind it."""
        return ResNet8(*self.shapes, width=(sizes["sum1"], sizes["sum2"], sizes["sum3"]))


class _NarrowStridedConv(nn.Conv2d):
    """A 1x1 convolution with stride 2, as one with stride 1 on every second pixel.

    With fewer than 8 channels that lie last in memory, torch 2.15's own (oneDNN, on processors with AVX2 and no AVX-512) writes
    past the end of its memory in the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the same numbers as ``nn.Conv2d``."""
        return functional.conv2d(x[:, :, ::2, ::2], self.weight)


def _short_cut(channels: int, wider: int) -> nn.Sequential:
    conv = nn.Conv2d if channels >= 8 else _NarrowStridedConv
    return nn.Sequential(conv(channels, wider, 1, stride=2, bias=False), nn.BatchNorm2d(wider))
