"""MobileNetV2 with group normalisation."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import StochasticDepth

from fedfacet.errors import FedFacetError

_WEIGHTS = MobileNet_V2_Weights.IMAGENET1K_V1


class MobileNetV2GN(nn.Module):
    """torchvision's MobileNetV2 with every BatchNorm replaced by GroupNorm; 2,226,434 parameters for two classes.

    The network of FedDiverse (arXiv:2504.11216), appendix: GroupNorm with 8 groups (every width is divisible by 8) and eps
    1e-6, dropout 0.2 before the head, stochastic depth that grows linearly over the blocks towards 0.2.

    Args:
        num_classes: Y.
        weights: ``"none"`` for a random start; ``"imagenet"`` for torchvision's ImageNet weights; or the path of a
            ``.safetensors`` or ``.pth`` file with a state dict of this network or of torchvision's.
        dropout: probability before the head, in [0, 1).
        stochastic_depth: the rate r in [0, 1) at which block i of 17 is skipped with probability r * i / 17.

    Raises:
        FedFacetError: if the weights cannot be had; the message says how to go on.
        ValueError: if a probability is out of range.

    Note:
        ``"imagenet"`` is an approximation of the authors' private checkpoint: the convolutions as torchvision trained them
        with BatchNorm, whose scale and shift are carried into GroupNorm while its running statistics have no counterpart. The
        head is drawn anew unless the file's head has the same shape.
    """

    def __init__(self, num_classes: int, *, weights: str = "none", dropout: float = 0.2, stochastic_depth: float = 0.2) -> None:
        super().__init__()
        for name, probability in (("dropout", dropout), ("stochastic_depth", stochastic_depth)):
            if not 0 <= probability < 1:
                raise ValueError(f"Expected `model.{name}` in [0, 1), but got {probability}.")
        norm = partial(nn.GroupNorm, 8, eps=1e-6)
        network = mobilenet_v2(num_classes=num_classes, dropout=dropout, norm_layer=norm)
        blocks = [block for block in network.features if isinstance(block, InvertedResidual)]
        for position, block in enumerate(blocks):
            if block.use_res_connect:
                block.conv.append(StochasticDepth(stochastic_depth * position / len(blocks), mode="row"))
        self.backbone = network.features
        self.dropout = nn.Dropout(dropout)
        self.head = network.classifier[1]
        if weights != "none":
            self._load(_torchvision_weights() if weights == "imagenet" else _read_weights(Path(weights)), weights)

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features, shape (B, 1280)."""
        return self.backbone(x).mean(dim=(2, 3))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.dropout(self.features(x)))  # type: ignore[no-any-return]

    def _load(self, saved: object, origin: str) -> None:
        renamed = {
            str(name).replace("features.", "backbone.", 1).replace("classifier.1.", "head.", 1): tensor
            for name, tensor in (saved.items() if isinstance(saved, Mapping) else ())
            if isinstance(tensor, Tensor)
        }
        own = self.state_dict()
        fitting = {name: tensor for name, tensor in renamed.items() if name in own and tensor.shape == own[name].shape}
        missing = [name for name in own if name not in fitting and not name.startswith("head.")]
        if missing:
            raise FedFacetError(
                f"Expected the weights {origin!r} to be those of a MobileNetV2 of this width, but {missing[0]!r} and "
                f"{len(missing) - 1} more tensors are missing or of another shape: pass another file or `model.weights=none`."
            )
        self.load_state_dict(fitting, strict=False)


def _torchvision_weights() -> object:
    file = Path(torch.hub.get_dir()) / "checkpoints" / _WEIGHTS.url.rsplit("/", 1)[1]
    try:
        return _WEIGHTS.get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        raise FedFacetError(
            f"Expected torchvision's ImageNet weights at {file} or from {_WEIGHTS.url}, but could not fetch them ({error}): "
            "put the file there, pass `model.weights=PATH`, or start from random weights with `model.weights=none`."
        ) from None
    except Exception as error:  # torch and pickle raise many kinds for a file that is not whole
        raise FedFacetError(
            f"Expected torchvision's ImageNet weights at {file}, but the file cannot be read ({type(error).__name__}): delete "
            "it, so that it is fetched again, pass `model.weights=PATH`, or start from random weights by `model.weights=none`."
        ) from None


def _read_weights(path: Path) -> object:
    if not path.is_file():
        raise FedFacetError(
            f"Expected `model.weights` to be 'none', 'imagenet' or a file, but {str(path)!r} is none of them: check the path."
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FedFacetError(
            f"Expected `model.weights` to name a file of weights, but {str(path)!r} cannot be read ({type(error).__name__}): "
            "pass another file or `model.weights=none`."
        ) from None
