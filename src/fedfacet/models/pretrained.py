"""Load saved weights into a model: into the same network, or from one with BatchNorm into its twin with GroupNorm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfacet.errors import FedFacetError


def load_weights(model: nn.Module, weights: str, *, imagenet: Any, renamed: Mapping[str, str], network: str) -> None:
    r"""Copy every saved tensor that fits into a model; the head stays as it is unless the saved one has its shape.

    Convolutions are copied as they are, and so are the scale :math:`\gamma` and the shift :math:`\beta` of every normalisation,
    and BatchNorm's running statistics where the model has them. Where it has GroupNorm instead,

    .. math::
        \gamma \frac{x - \mu_\text{running}}{\sigma_\text{running}} + \beta \quad\longrightarrow\quad
        \gamma \frac{x - \mu_\text{group}(x)}{\sigma_\text{group}(x)} + \beta

    and the running statistics, which have no counterpart in GroupNorm, are left behind. The number of batches that BatchNorm
    has seen may be missing, as from older files.

    Args:
        model: the network, whose last layer is ``head``; changed in place.
        weights: ``"none"``, which changes nothing; ``"imagenet"``; or the path of a ``.safetensors`` or ``.pth`` file with a
            state dict under the model's own names or those of the original.
        imagenet: the entry of torchvision's weights that ``"imagenet"`` means.
        renamed: beginning of a name in the original -> what it begins with in the model; of several that fit, the first counts.
        network: what the original is called, for messages.

    Raises:
        FedFacetError: if the weights cannot be had, are not whole or belong to something else; the message says how to go on.
    """
    if weights == "none":
        return
    saved = _from_torchvision(imagenet) if weights == "imagenet" else _from_file(Path(weights))
    own = model.state_dict()
    fitting = {}
    for name, tensor in saved.items() if isinstance(saved, Mapping) else ():
        target = str(name)
        if target not in own and (beginning := next(filter(target.startswith, renamed), None)) is not None:
            target = renamed[beginning] + target.removeprefix(beginning)
        if isinstance(tensor, Tensor) and target in own and tensor.shape == own[target].shape:
            fitting[target] = tensor
    needed = [name for name in own if not name.startswith("head.") and not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in fitting]
    if missing:
        raise FedFacetError(
            f"Expected the weights {weights!r} to be those of a {network} of this width, but {missing[0]!r} and "
            f"{len(missing) - 1} more tensors are missing or of another shape: pass another file or `model.weights=none`."
        )
    for name, tensor in fitting.items():  # some networks of torchvision refuse a state dict that does not say its version
        own[name].copy_(tensor)


def _from_torchvision(imagenet: Any) -> object:
    file = Path(torch.hub.get_dir()) / "checkpoints" / imagenet.url.rsplit("/", 1)[1]
    try:
        return imagenet.get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        raise FedFacetError(
            f"Expected torchvision's ImageNet weights at {file} or from {imagenet.url}, but could not fetch them ({error}): "
            "put the file there, pass `model.weights=PATH`, or start from random weights with `model.weights=none`."
        ) from None
    except Exception as error:  # torch and pickle raise many kinds for a file that is not whole
        raise FedFacetError(
            f"Expected torchvision's ImageNet weights at {file}, but the file cannot be read ({type(error).__name__}): delete "
            "it, so that it is fetched again, pass `model.weights=PATH`, or pass `model.weights=none` for random weights."
        ) from None


def _from_file(path: Path) -> object:
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
