"""Any network of timm."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from fedfacet.errors import ConfigError, FedFacetError, first_line
from fedfacet.models.base import Network
from fedfacet.models.pretrained import load_weights
from fedfacet.optional import required


class Timm(Network):
    """A network that ``timm.create_model`` makes without its classifier, and a linear ``head`` of our own.

    What the head sees are timm's pooled features (``num_classes=0``), which FedDiverse, FedPAC, FedPer and others ask for.
    Needs the package ``timm`` (``pip install fedfacet[timm]``).

    Args:
        num_classes: Y.
        input_shape: (C, H, W).
        name: of a network, such as ``resnet18`` or ``vit_tiny_patch16_224``; ``timm.list_models()`` names all.
        weights: ``"none"`` for a random start; ``"pretrained"`` for timm's, which are fetched; or the path of a
            ``.safetensors`` or ``.pth`` file with a state dict of this network or of timm's. The head is drawn anew unless the
            saved one has its shape.
        arguments: further ones of ``create_model``, ``+model.arguments.img_size=64`` of a vision transformer for example.

    Raises:
        ConfigError: if timm is not installed, knows no such network, or the network refuses its arguments.
        FedFacetError: if the weights cannot be had.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: tuple[int, ...],
        *,
        name: str = "resnet18",
        weights: str = "none",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        timm = required("timm", extra="timm", wanted_by="model=timm")
        if len(input_shape) != 3:
            raise ValueError(f"Expected images of shape (C, H, W) for a network of timm, but got {tuple(input_shape)}.")
        if weights not in ("none", "pretrained") and not Path(weights).is_file():
            raise FedFacetError(
                f"Expected `model.weights` to be 'none', 'pretrained' or a file, but {weights!r} is none of them: check "
                "the path."
            )
        fetched = weights == "pretrained"
        if not fetched and (":" in name or "/" in name):  # of a hub, which would be asked
            raise ConfigError(
                f"Expected `model.name` to be a network of timm's own, but got {name!r}: `timm.list_models()` names them."
            )
        if "checkpoint_path" in (arguments or {}):
            raise ConfigError("Expected weights by `model.weights`, but got `model.arguments.checkpoint_path`: leave it out.")
        settings = {"in_chans": input_shape[0], **(arguments or {}), "num_classes": 0}
        try:
            network = timm.create_model(name, pretrained=fetched, **settings)
        except Exception as error:  # each network has errors of its own, and so has the Hub
            if fetched and timm.is_model(name):
                raise FedFacetError(
                    f"Expected timm's weights of {name}, but could not fetch them ({first_line(error)}): pass "
                    "`model.weights=PATH`, or start from random weights with `model.weights=none`."
                ) from None
            if near := [] if timm.is_model(name) else get_close_matches(name, timm.list_models(), n=3):
                raise ConfigError(
                    f"Expected `model.name` to be one of timm's networks, but got {name!r}: choose {' or '.join(near)}, "
                    "or another of `timm.list_models()`."
                ) from None
            raise ConfigError(
                f"Expected `model.name` and `model.arguments` that timm takes, but it says of {name!r}: {first_line(error)}: "
                "`timm.list_models()` names all networks."
            ) from None
        self.backbone = network
        self.head = nn.Linear(getattr(network, "head_hidden_size", network.num_features), num_classes)
        if not fetched:
            classifier = network.pretrained_cfg.get("classifier", "fc")
            own = f"{classifier}." if isinstance(classifier, str) else "head."
            load_weights(self, weights, imagenet=None, renamed={own: "head.", "": "backbone."}, network=name)
