"""ResNet-50 with group normalisation."""

from functools import partial

from torch import nn

from fedfacet.models.base import ResNet50Network


class ResNet50GN(ResNet50Network):
    """torchvision's ResNet-50 with every BatchNorm replaced by GroupNorm; 23,512,130 parameters for two classes.

    GroupNorm has 32 groups and eps 1e-5, as in timm's ``resnet50_gn``, whose names are torchvision's: its checkpoint can be
    given as ``weights``. FedDiverse (arXiv:2504.11216), table 7 (thesis, table 18), has this network on WaterBirds.

    Deviation: the paper says neither how its ResNet-50 is normalised nor where its weights come from. The released code first
    took torchvision's with BatchNorm replaced by fresh GroupNorm of 4 groups, and in the end timm's ``resnet50_gn``, trained
    with GroupNorm. ``"imagenet"`` approximates the latter by torchvision's, trained with BatchNorm (see ``load_weights``). The
    head is drawn anew unless the file's head has the same shape.

    Args:
        num_classes: Y.
        weights: as in ``MobileNetV2GN``, timm's state dict included.
    """

    def __init__(self, num_classes: int, *, weights: str = "none") -> None:
        super().__init__(num_classes, partial(nn.GroupNorm, 32), weights)
