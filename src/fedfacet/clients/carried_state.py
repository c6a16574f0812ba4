"""State that a network keeps in plain attributes: no update carries it, so that it passes from client to client."""

import copy
import inspect
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fedfacet.builtin import of_library
from fedfacet.clients.notes import OF_MODULES

_CONTAINERS = (Mapping, list, tuple, set, deque)
_DEPTH = 6  # of what is compared inside other things

Place = tuple[dict[str, Any], str]


class PlainAttributes:
    """The attributes of a network's modules that are neither parameters nor buffers; those of library layers hold no state.

    Args:
        module: the network.
    """

    def __init__(self, module: nn.Module) -> None:
        kinds = (Metric, MetricCollection)
        metrics = {part for metric in module.modules() if isinstance(metric, kinds) for part in metric.modules()}
        self._parts = {prefix: part for prefix, part in module.named_modules() if not (of_library(part) or part in metrics)}
        self._kept = [*module.modules(), *module.parameters(), *module.buffers()]
        self.are_seen = bool(self._parts) or any(
            part._forward_hooks or part._forward_pre_hooks for part in module.modules() if part not in metrics
        )

    def now(self) -> dict[str, Any]:
        """Return copies of their values."""
        memo, values = {id(one): one for one in self._kept}, {}
        for name, (table, key) in self._places().items():
            try:
                value = table[key]
                values[name] = value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value, memo)
            except Exception:  # a lock or a file, say, which are no numbers
                continue
        return values

    def restore(self, values: Mapping[str, Any]) -> None:
        """Put copies of the values back that have changed since."""
        memo: dict[int, Any] = {id(one): one for one in self._kept}
        for name, (table, key) in self._places().items():
            if name in values and not same(values[name], table[key]):
                table[key] = copy.deepcopy(values[name], memo)

    def _places(self) -> dict[str, Place]:
        return {
            f"{prefix}.{key}".lstrip("."): (vars(part), key)
            for prefix, part in self._parts.items()
            for key in vars(part)
            if key not in OF_MODULES
        }


def accumulated(once: Mapping[str, Any], twice: Mapping[str, Any]) -> str | None:
    """Return an attribute that another step of the same kind has changed once more; a list that grows may be a record."""
    for name, value in twice.items():
        if name in once and not isinstance(value, _CONTAINERS) and not same(once[name], value):
            return name
    return None


def _generator_state(value: Any) -> Any:
    """Return the state of a random generator, of numpy, torch or Python; ``None`` for anything else."""
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    state = getattr(value, "get_state", None) or getattr(value, "getstate", None)
    return state() if callable(state) else None


def same(left: Any, right: Any, depth: int = _DEPTH) -> bool:
    """Tell whether two values are equal, as far as one can look into them."""
    if type(left) is not type(right):
        return False
    if left is right or not depth or inspect.isroutine(left) or isinstance(left, type):
        return True
    if isinstance(left, Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and torch.allclose(left, right, 0, 0, equal_nan=True)
    if isinstance(left, np.ndarray):
        return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
    if (state := _generator_state(left)) is not None:
        return same(state, _generator_state(right), depth - 1)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key], depth - 1) for key in left)
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(same(a, b, depth - 1) for a, b in zip(left, right, strict=True))
    if hasattr(left, "__dict__"):
        return same(vars(left), vars(right), depth - 1)
    return bool(left == right or left != left)
