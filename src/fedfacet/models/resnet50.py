"""ResNet-50, with batch normalisation and with group normalisation."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Self

from torch import Tensor, nn
from torchvision.models import ResNet50_Weights, resnet50

from fedfacet.models.base import Network, keep_statistics
from fedfacet.models.pretrained import load_weights


class ResNet50Network(Network):
    """torchvision's ResNet-50, with normalisation layers of one kind.

    Args:
        num_classes: Y.
        norm_layer: makes a normalisation layer for a number of channels.
        weights: as in ``load_weights``, which also says what is refused, with torchvision's version 1 for ImageNet.
    """

    def __init__(self, num_classes: int, norm_layer: Callable[..., nn.Module], weights: str) -> None:
        super().__init__()
        network = resnet50(num_classes=num_classes, norm_layer=norm_layer)
        self.backbone = nn.Sequential(OrderedDict((name, part) for name, part in network.named_children() if name != "fc"))
        self.head = network.fc
        imagenet, renamed = ResNet50_Weights.IMAGENET1K_V1, {"fc.": "head.", "": "backbone."}
        load_weights(self, weights, imagenet=imagenet, renamed=renamed, network="ResNet-50")

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features, shape (B, 2048)."""
        return self.backbone(x).flatten(1)  # type: ignore[no-any-return]


class ResNet50(ResNet50Network):
    """torchvision's ResNet-50 with its batch normalisation; 23,512,130 parameters for two classes.

    The network of FedLD (Zeng et al., MICCAI 2024), section 3.1, from ImageNet weights. Its running statistics make FedBN
    (``personal=norm_layers``) differ from FedAvg.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385.

    Deviation: running statistics follow the clients' batches. FedLD's released code calls ``eval()`` before the first round and
    never ``train()`` again, for all methods compared: that is ``frozen_statistics=True``. The head is drawn anew unless the
    file's head has the same shape.

    Note: in images of 32 pixels or fewer the last layers see one pixel a channel, and torch refuses a batch of one such image.

    Args:
        num_classes: Y.
        weights: as in ``MobileNetV2GN``; ``"imagenet"`` and files bring running statistics along.
        frozen_statistics: whether the running statistics of ``weights`` are used, and kept, in training too; scale and shift
            are trained all the same. Batches then do not matter to each other; with ``weights="none"`` nothing is normalised.
    """

    def __init__(self, num_classes: int, *, weights: str = "none", frozen_statistics: bool = False) -> None:
        super().__init__(num_classes, nn.BatchNorm2d, weights)
        self.frozen_statistics = frozen_statistics

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers; that of batch normalisation stays evaluation where statistics are frozen."""
        super().train(mode)
        if self.frozen_statistics:
            keep_statistics(self.backbone)
        return self


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
