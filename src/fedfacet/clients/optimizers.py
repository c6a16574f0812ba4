"""An objective's optimizer, as a client's round needs it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from fedfacet import state
from fedfacet.clients.own_module import configured
from fedfacet.types import State

_PREFIX = "optimizer|"


def single_optimizer(objective: L.LightningModule) -> Optimizer:
    """Return the optimizer of an objective that has exactly one.

    Raises:
        ValueError: if ``configure_optimizers`` returns none or several.
    """
    return configured(objective)[0]


def bare_step_of(optimizer: Optimizer) -> tuple[Callable[[], object], Sequence[object]]:
    """Return an optimizer's step without what torch wraps it in, and who is served by that.

    The wrapper, for hooks and the profiler, takes as long as a small model's step.

    Returns:
        The step, and the tables of hooks, which are empty as long as there are none. Where the step is not torch's own, or this
        torch keeps its hooks elsewhere, there is always somebody.
    """
    wrapped = getattr(type(optimizer).step, "__wrapped__", None)
    hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", True) for when in ("pre", "post")]
    hooks += [getattr(torch_optimizer, f"_global_optimizer_{when}_hooks", True) for when in ("pre", "post")]
    if wrapped is None or not type(optimizer).__module__.startswith("torch.optim."):
        return optimizer.step, (True,)
    return partial(wrapped, optimizer), hooks


def settings_of(optimizer: Optimizer) -> list[tuple[tuple[str, str], ...]]:
    """Return the settings of each group of parameters in a form that can be compared."""
    return [tuple((key, str(value)) for key, value in group.items() if key != "params") for group in optimizer.param_groups]


def restore_optimizer(optimizer: Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Give an optimizer copies of what ``state_dict()["state"]`` held, in the memory order of its parameters.

    What it has already is written over in place, since a recorded step reads it there. Fused kernels go through parameters and
    moments by their place in memory, whatever their strides.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in saved.items():
        parameter = parameters[index]
        for name, value in entries.items():
            if isinstance(there := optimizer.state[parameter].get(name), Tensor):
                there.copy_(value)
                continue
            if isinstance(value, Tensor):
                like = parameter if name != "step" and value.shape == parameter.shape else value
                value = torch.empty_like(like, dtype=value.dtype, device=like.device).copy_(value)
            optimizer.state[parameter][name] = value


def flattened(saved: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an optimizer's state under names of one level; ``nested`` takes it back."""
    return {f"{index}|{name}": value for index, entries in saved.items() for name, value in entries.items()}


def nested(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return what ``flattened`` was given, but for parameters without a state."""
    saved: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        index, _, name = key.partition("|")
        saved.setdefault(int(index), {})[name] = value
    return saved


def optimizer_to_keep(optimizer: Optimizer) -> State:
    """Return copies of an optimizer's state for the client's memory.

    Raises:
        ValueError: if some of it is no tensor.
    """
    kept = flattened(optimizer.state_dict()["state"])
    for key, value in kept.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"Expected an optimizer whose state is tensors for `local.keep_optimizer`, but the {key.partition('|')[2]} of "
                f"{type(optimizer).__name__} is {value!r}: choose another optimizer."
            )
    return {_PREFIX + key: tensor.cpu().contiguous() for key, tensor in state.clone(kept).items()}


def kept_optimizer(memory: State) -> dict[int, dict[str, Any]]:
    """Return what ``optimizer_to_keep`` put into a client's memory, as ``restore_optimizer`` takes it."""
    return nested({key.removeprefix(_PREFIX): tensor for key, tensor in memory.items() if key.startswith(_PREFIX)})
