"""MobileNetV2 with group normalisation."""

from functools import partial

from torch import Tensor, nn
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import StochasticDepth

from fedfacet.arguments import check_within
from fedfacet.models.base import Network
from fedfacet.models.pretrained import load_weights


class MobileNetV2GN(Network):
    """torchvision's MobileNetV2 with every BatchNorm replaced by GroupNorm; 2,226,434 parameters for two classes.

    The network of FedDiverse (arXiv:2504.11216), whose section 5.2 names MobileNetV2 with group normalisation. The rest is its
    released code's: 8 groups (every width is divisible by 8), eps 1e-6, 1280 features and dropout 0.2 before the head.
    Stochastic depth grows linearly over the blocks towards 0.2.

    Args:
        num_classes: Y.
        weights: ``"none"`` for a random start; ``"imagenet"`` for torchvision's, version 1; or the path of a ``.safetensors``
            or ``.pth`` file with a state dict of this network or of torchvision's.
        dropout: probability before the head, in [0, 1).
        stochastic_depth: the rate r in [0, 1) at which block i of 17 is skipped with probability r * i / 17.

    Raises:
        FedFacetError: if the weights cannot be had; the message says how to go on.

    Deviation: ``"imagenet"`` approximates the authors' private checkpoint by torchvision's, trained with BatchNorm (see
    ``load_weights``). The head is drawn anew unless the file's head has the same shape.
    """

    def __init__(self, num_classes: int, *, weights: str = "none", dropout: float = 0.2, stochastic_depth: float = 0.2) -> None:
        super().__init__()
        check_within("model.dropout", dropout, "[0, 1)")
        check_within("model.stochastic_depth", stochastic_depth, "[0, 1)")
        norm = partial(nn.GroupNorm, 8, eps=1e-6)
        network = mobilenet_v2(num_classes=num_classes, dropout=dropout, norm_layer=norm)
        blocks = [block for block in network.features if isinstance(block, InvertedResidual)]
        for position, block in enumerate(blocks):
            if block.use_res_connect:
                block.conv.append(StochasticDepth(stochastic_depth * position / len(blocks), mode="row"))
        self.backbone = network.features
        self.dropout = nn.Dropout(dropout)
        self.head = network.classifier[1]
        imagenet, renamed = MobileNet_V2_Weights.IMAGENET1K_V1, {"features.": "backbone.", "classifier.1.": "head."}
        load_weights(self, weights, imagenet=imagenet, renamed=renamed, network="MobileNetV2")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.dropout(self.features(x)))  # type: ignore[no-any-return]
