"""An objective's optimizer, as a client's round needs it."""

from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from fedfacet import state
from fedfacet.types import State

_PREFIX = "optimizer|"


def single_optimizer(objective: L.LightningModule) -> Optimizer:
    """Return the optimizer of an objective that has exactly one.

    Raises:
        ValueError: if ``configure_optimizers`` returns anything else.
    """
    optimizer = objective.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"Expected {type(objective).__name__}.configure_optimizers to return one optimizer, but got "
            f"{type(optimizer).__name__}: schedulers and several optimizers have no meaning within a client's round."
        )
    return optimizer


def restore_optimizer(optimizer: Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Give an optimizer copies of what ``state_dict()["state"]`` held, in the memory order of its parameters.

    Fused kernels go through parameters and moments by their place in memory, whatever their strides.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in saved.items():
        parameter = parameters[index]
        for name, value in entries.items():
            if isinstance(value, Tensor):
                like = parameter if name != "step" and value.shape == parameter.shape else value
                value = torch.empty_like(like, dtype=value.dtype, device=like.device).copy_(value)
            optimizer.state[parameter][name] = value


def optimizer_to_keep(optimizer: Optimizer) -> State:
    """Return copies of an optimizer's state for the client's memory.

    Raises:
        ValueError: if some of it is no tensor.
    """
    kept: State = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"Expected an optimizer whose state is tensors for `local.keep_optimizer`, but the {name} of "
                    f"{type(optimizer).__name__} is {value!r}: choose another optimizer."
                )
            kept[f"{_PREFIX}{index}|{name}"] = value
    return {name: tensor.cpu().contiguous() for name, tensor in state.clone(kept).items()}


def kept_optimizer(memory: State) -> dict[int, dict[str, Any]]:
    """Return what ``optimizer_to_keep`` put into a client's memory, as ``restore_optimizer`` takes it."""
    saved: dict[int, dict[str, Any]] = {}
    for key, tensor in memory.items():
        if key.startswith(_PREFIX):
            index, _, name = key.removeprefix(_PREFIX).partition("|")
            saved.setdefault(int(index), {})[name] = tensor
    return saved


def with_learning_rate(optimizer: Optimizer, factor: float) -> Optimizer:
    """Multiply the learning rate of all of an optimizer's parameter groups, and return it."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    return optimizer


def step_weight_of(optimizer: Optimizer, objective: L.LightningModule, num_steps: int) -> float:
    """Return ||a_k||_1, the sum of the absolute weights that a client's gradients have in its update, per learning rate.

    Source: FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481), section 4. SGD with momentum rho and a proximal term of
    strength mu is linear in its gradients: a gradient's weight is how far it alone has moved the weights by the last step.
    Weights may be negative (an oscillation, where lr mu > (1 - sqrt(rho))^2). Other optimizers count their steps, and a
    velocity that a client kept from former rounds counts for nothing.
    """
    group = optimizer.param_groups[0]
    if not isinstance(optimizer, SGD) or group["nesterov"] or group["dampening"]:
        return float(num_steps)
    mu = getattr(getattr(objective, "correction", None), "proximal_strength", 0.0)
    velocity = walked = 0.0
    if mu == 0:  # no weight is negative: their sum is where gradients of 1 lead
        for _ in range(num_steps):
            velocity = group["momentum"] * velocity + 1
            walked += velocity
        return walked
    total = 0.0
    for step in range(num_steps):
        velocity = group["momentum"] * velocity + (step == 0) - group["lr"] * mu * walked
        walked += velocity
        total += abs(walked)
    return total
