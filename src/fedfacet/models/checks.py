"""Whether a model fits into memory and takes the inputs of a data set, found out before the first round."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedfacet import rng
from fedfacet.errors import ConfigError
from fedfacet.machine_memory import available_memory

COPIES = 4  # of what is trained: its weights, their gradient, a client's update, and the server's weights
_OVERFLOWS = ("overflow", "negative dimension", "too large", "allocate")  # what torch says of tensors larger than any memory


def check_size(make: Callable[[], nn.Module], name: str, fit: Callable[[nn.Module], None] | None = None) -> None:
    """Refuse a model that would not fit into the memory of this machine: four times what is trained, and once what is frozen.

    The model is built without memory, on torch's device ``meta``. A model that cannot be built there is let through, and so is
    one that refuses its arguments: making it says why. ``fit`` changes the model in place after it is made, as an adapter does.
    It may freeze weights and store them in fewer bytes, but the model must fit as it was made too.

    Raises:
        ConfigError: with the bytes that it needs and those that are available.
    """
    try:
        with warnings.catch_warnings(action="ignore"), rng.forked(0, "model-size"), torch.device("meta"):
            model = make()  # torch warns where pretrained weights are loaded into nothing
            made = _num_bytes([*model.parameters(), *model.buffers()])
            if fit is not None:
                fit(model)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if isinstance(error, OverflowError | MemoryError) or any(word in str(error).lower() for word in _OVERFLOWS):
            raise ConfigError(
                f"Expected {name} to fit into memory, but it has a tensor that is too large for any: make it smaller."
            ) from None
        return
    except Exception:
        return
    frozen = _num_bytes([parameter for parameter in model.parameters() if not parameter.requires_grad])
    trained = _num_bytes([*model.parameters(), *model.buffers()]) - frozen
    needed, copies = COPIES * trained + frozen, f"{COPIES} copies of its weights"
    if frozen:
        copies = f"{COPIES} copies of what is trained, 1 of what is frozen"
    if made > needed:
        needed, copies = made, "before its weights are frozen"
    if needed > (available := available_memory()):
        raise ConfigError(
            f"Expected {name} to fit into memory, but training it takes {needed:,} bytes ({copies}) and {available:,} are "
            "available: make it smaller."
        )


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if not is_lazy(tensor))


def check_inputs(model: nn.Module, x: Tensor, name: str) -> None:
    """Show a model some inputs, and refuse it where it fails at them.

    Raises:
        ConfigError: with the shape and the type of one input, and what torch says.
    """
    training = model.training
    try:
        with rng.forked(0, "model-inputs"), torch.inference_mode():
            model.eval()(_as_weights(model, x))
    except Exception as error:
        raise ConfigError(
            f"Expected {name} to take inputs of shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}, but "
            f"it fails at them ({(str(error) or type(error).__name__).splitlines()[0]}): choose another `model` or `dataset`, "
            "or other `model.arguments` or another `dataset.image_size` where there are such."
        ) from None
    finally:
        model.train(training)


def check_trained(model: nn.Module, x: Tensor, name: str) -> None:
    """Refuse a model some of whose trained weights have no part in what it says of some inputs.

    Raises:
        ConfigError: naming the first of them.
    """
    trained = {parameter: tensor for parameter, tensor in model.named_parameters() if tensor.requires_grad}
    training = model.training
    with rng.forked(0, "model-trained"):
        output = model.eval()(_as_weights(model, x))
    model.train(training)
    gradients = torch.autograd.grad(output.sum(), list(trained.values()), allow_unused=True)
    if unused := [parameter for parameter, gradient in zip(trained, gradients, strict=True) if gradient is None]:
        raise ConfigError(
            f"Expected weights that the model uses for {name}, but {unused[0]!r} has no part in what it says: name other "
            "modules."
        )


def _as_weights(model: nn.Module, x: Tensor) -> Tensor:
    """Return inputs of the type that a model's weights have."""
    return x.to(next((p.dtype for p in model.parameters()), x.dtype)) if x.is_floating_point() else x
