"""ResNet-50 with group normalisation."""

from functools import partial

from torch import nn

from fedfacet.models.base import ResNet50Network


class ResNet50GN(ResNet50Network):
    """torchvision's ResNet-50 with every BatchNorm replaced by GroupNorm; 23,512,130 parameters for two classes.

    GroupNorm has 32 groups and eps 1e-5, as in timm's ``resnet50_gn``, whose names are torchvision's: its checkpoint can be
    given as ``weights``. FedDiverse (arXiv:2504.11216), table 7 (thesis, table 18), has this network on WaterBirds.

    Args:
        num_classes: Y.
        weights: ``"none"`` for a random start; ``"imagenet"`` for torchvision's ImageNet weights (version 1); or the path of a
            ``.safetensors`` or ``.pth`` file with a state dict of this network, of torchvision's or of timm's.

    Raises:
        FedFacetError: if the weights cannot be had; the message says how to go on.

    Deviation:
        The paper says neither how its ResNet-50 is normalised nor where its weights come from; the released code took
        torchvision's with BatchNorm replaced by fresh GroupNorm of 4 groups at first, and timm's ``resnet50_gn``, trained with
        GroupNorm, in the end. ``"imagenet"`` approximates the latter by torchvision's convolutions with BatchNorm's scale and
        shift (``fedfacet.models.pretrained``). The head is drawn anew unless the file's head has the same shape.
    """

    def __init__(self, num_classes: int, *, weights: str = "none") -> None:
        super().__init__(num_classes, partial(nn.GroupNorm, 32), weights)
