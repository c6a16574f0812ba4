"""Any classifier of torchvision's catalogue."""

import difflib
from collections.abc import Mapping
from typing import Any

import torchvision

from fedfacet.errors import ConfigError
from fedfacet.models.base import Network, without_head
from fedfacet.models.pretrained import load_weights

_WITHOUT_FURTHER_HEADS = {"aux_logits": False, "init_weights": True}


class Torchvision(Network):
    """A network that ``torchvision.models.get_model`` makes, its last linear layer as the ``head``.

    What the head sees are the features that FedDiverse, FedPAC, FedPer and others ask for. Networks whose last layer is no
    linear one, SqueezeNet's for example, are refused. Many have batch normalisation, whose running statistics follow the
    clients' batches; ``personal=norm_layers`` keeps them apart.

    Args:
        num_classes: Y.
        input_shape: (3, H, W); torchvision's networks take three channels.
        name: of a classifier, such as ``resnet18``, ``mobilenet_v3_small`` or ``vit_b_16``.
        weights: ``"none"`` for a random start; ``"imagenet"`` for torchvision's default, which is fetched; or the path of a
            ``.safetensors`` or ``.pth`` file with a state dict of this network or of torchvision's. The head is drawn anew
            unless the saved one has its shape.
        arguments: further ones of ``get_model``, ``+model.arguments.image_size=32`` of a ``vit_b_16`` for example.

    Raises:
        ConfigError: if there is no such network, if it refuses its arguments, or if it has no linear head.
        FedFacetError: if the weights cannot be had.

    Example:
        >>> import torch
        >>> network = Torchvision(5, (3, 32, 32), name="mobilenet_v3_small")
        >>> network.head, network.features(torch.zeros(2, 3, 32, 32)).shape
        (Linear(in_features=1024, out_features=5, bias=True), torch.Size([2, 1024]))
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
        known = torchvision.models.list_models(module=torchvision.models)
        if name not in known:
            nearest = ", ".join(difflib.get_close_matches(name, known, 5)) or "resnet18"
            raise ConfigError(
                f"Expected `model.name` to be one of torchvision's {len(known)} classifiers, but got {name!r}: the nearest are "
                f"{nearest}; `torchvision.models.list_models()` names all."
            )
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(f"Expected images of shape (3, H, W) for a network of torchvision, but got {tuple(input_shape)}.")
        if loading := [key for key in arguments or {} if key.startswith(("weights", "pretrained"))]:
            raise ConfigError(f"Expected weights by `model.weights`, but got `model.arguments.{loading[0]}`: leave it out.")
        further = _WITHOUT_FURTHER_HEADS if name in ("googlenet", "inception_v3") else {}
        try:
            network = torchvision.models.get_model(name, num_classes=num_classes, **{**further, **(arguments or {})})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Expected `model.arguments` that {name} takes, but it says: {error}.") from None
        self.head, place = without_head(network, f"torchvision's {name}")
        self.backbone = network
        load_weights(
            self,
            weights,
            imagenet=torchvision.models.get_model_weights(name)["DEFAULT"],
            renamed={f"{place}.": "head.", "": "backbone."},
            network=name,
        )
