"""A small residual network with batch normalisation."""

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock

from fedfacet.models.base import Network


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
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int], *, width: int = 16) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"Expected `model.width` to be 1 or larger, but got {width}.")
        self.backbone = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            BasicBlock(width, width),
            BasicBlock(width, 2 * width, stride=2, downsample=_short_cut(width, 2 * width)),
            BasicBlock(2 * width, 4 * width, stride=2, downsample=_short_cut(2 * width, 4 * width)),
        )
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


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
