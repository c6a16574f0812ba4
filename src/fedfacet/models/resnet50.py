"""ResNet-50."""

from typing import Self

from torch import nn

from fedfacet.models.base import ResNet50Network


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
            for module in self.backbone.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
