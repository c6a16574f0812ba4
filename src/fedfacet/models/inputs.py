"""Whether a model takes the inputs of a data set, found out before the first round."""

import torch
from torch import Tensor, nn

from fedfacet import rng
from fedfacet.errors import ConfigError


def check_inputs(model: nn.Module, x: Tensor, name: str) -> None:
    """Show a model some inputs, and refuse it where it fails at them.

    Raises:
        ConfigError: with the shape and the type of one input, and what torch says.

    Example:
        >>> check_inputs(torch.nn.Conv2d(3, 8, 3), torch.zeros(1, 30), "`model=conv`")
        Traceback (most recent call last):
        fedfacet.errors.ConfigError: Expected `model=conv` to take inputs of shape (30,) and type float32, but it fails at them
        (...): choose another `model` or `dataset`.
    """
    training = model.training
    try:
        dtype = next((p.dtype for p in model.parameters()), x.dtype) if x.is_floating_point() else x.dtype
        with rng.forked(0, "model-inputs"), torch.inference_mode():
            model.eval()(x.to(dtype))
    except Exception as error:
        raise ConfigError(
            f"Expected {name} to take inputs of shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}, but "
            f"it fails at them ({(str(error) or type(error).__name__).splitlines()[0]}): choose another `model` or `dataset`."
        ) from None
    finally:
        model.train(training)
