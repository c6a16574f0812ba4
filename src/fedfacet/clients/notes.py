"""What an objective has noted of a client outside the federated model: control variates, anchors, another model.

An engine that trains many clients in the same memory must put one client's notes in the place of another's. It finds them by
walking the attributes of the objective and of its parts; nothing is declared.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lightning as L
from torch import Tensor, nn

OF_MODULES = frozenset({*vars(nn.Module()), *vars(L.LightningModule()), "log"})
"""Attributes of every module, which say nothing about a client."""

_VALUES = (Tensor, bool, int, float, str, bytes, type(None))


class Slot(NamedTuple):
    """Where a tensor is noted: ``container[key]``.

    ``path`` names the place, for example ``correction._drift.head.weight``.
    """

    path: str
    container: Any
    key: Any

    @property
    def tensor(self) -> Tensor:
        """What is noted there."""
        value: Tensor = self.container[self.key]
        return value

    def put(self, tensor: Tensor) -> None:
        """Note another tensor."""
        self.container[self.key] = tensor


class Notes(NamedTuple):
    """What an objective has noted.

    Attributes:
        slots: tensors that are no part of the federated model, in a fixed order.
        aliases: places that hold a tensor of the federated model itself.
        shape: what clients with the same kind of notes share: paths, shapes, dtypes, devices, and all plain values.
        unmovable: the path of a tensor that cannot be replaced, as it is in a tuple; empty without one.
        attributes: of each module that has some, by name.
    """

    slots: list[Slot]
    aliases: list[Slot]
    shape: tuple[Any, ...]
    unmovable: str
    attributes: list[tuple[nn.Module, dict[str, Any]]]

    def attach(self) -> None:
        """Give modules their attributes again, where a client's end has replaced them."""
        for module, attributes in self.attributes:
            vars(module).update(attributes)

    def put(self, tensors: Sequence[Tensor]) -> None:
        """Note other tensors, one for each slot."""
        for slot, tensor in zip(self.slots, tensors, strict=True):
            slot.put(tensor)


def notes_of(objective: nn.Module, model: nn.Module) -> Notes:
    """Find what an objective has noted.

    Args:
        objective: what a client trains, after its ``on_client_start``.
        model: the federated module. Its parameters and buffers are not notes, and unless it is the objective itself, neither
            are other attributes of its modules: walking a large network would take longer than a step.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    own = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    registered = {id(place) for module in model.modules() for place in (module._parameters, module._buffers)}
    slots: list[Slot] = []
    aliases: list[Slot] = []
    shape: list[Any] = []
    unmovable = ""
    for path, container, key, value in _walk(objective, model):
        if not isinstance(value, Tensor):
            shape.append((path, value))
        elif id(value) in own:
            if id(container) not in registered:
                aliases.append(Slot(path, container, key))
        else:
            # Beside an accelerator a number on the CPU is read when a step is launched, and not by its address.
            number = value.item() if value.device != device and value.numel() == 1 else None
            shape.append((path, tuple(value.shape), value.dtype, str(value.device), number))
            slots.append(Slot(path, container, key))
        if isinstance(value, Tensor) and isinstance(container, tuple):
            unmovable = unmovable or path
    elsewhere = [module for module in objective.modules() if model is objective or module not in set(model.modules())]
    attributes = [
        (module, {key: value for key, value in vars(module).items() if key not in OF_MODULES}) for module in elsewhere
    ]
    return Notes(slots, aliases, tuple(shape), unmovable, attributes)


NOTHING = Notes([], [], (), "", [])
"""The notes of an objective that takes none."""


def _walk(root: nn.Module, model: nn.Module) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield (path, container, key, value) of every tensor and plain value that can be reached from a module."""
    seen = set() if model is root else {id(model)}
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, holder = waiting.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for container, key in _places(holder):
            value, place = container[key], f"{path}{key}"
            if isinstance(value, _VALUES):
                yield place, container, key, value
            elif isinstance(value, dict | list | tuple | nn.Module):
                waiting.append((f"{place}.", value))


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where a holder's values are."""
    if isinstance(holder, nn.Module):
        inside = vars(holder)
        yield from ((inside[group], key) for group in ("_modules", "_parameters", "_buffers") for key in inside[group])
        yield from ((inside, key) for key in inside if key not in OF_MODULES)
    else:
        yield from ((holder, key) for key in (holder if isinstance(holder, dict) else range(len(holder))))
