"""A model on an accelerator: the round's model goes there once, and each client's update comes back together."""

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.types import State

_ALIGNMENT = 16  # numbers; kernels read whole cache lines where a tensor starts at one


class ResidentModel:
    """Keeps the last model that clients started from on their device.

    ``download`` subtracts on the device. Both the CPU and an accelerator round a difference correctly, so an update has the
    same bits as one that is subtracted on the CPU.

    Args:
        tensors: a model's tensors on the device; names, shapes, dtypes and the device are taken from them.
    """

    def __init__(self, tensors: State) -> None:
        self._like = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        self._device = next(iter(tensors.values())).device
        self._sent: dict[str, tuple[Tensor, int]] = {}
        self._resident: State = {}

    def upload(self, weights: State) -> State:
        """Return a model's tensors on the device, for the names of this one.

        A model of which no tensor is there yet is sent and kept in place of the last one. A tensor is known again by its
        identity, so pass another object if another process writes to it. Of a model that
        shares tensors with the kept one, the others stay where they are.
        """
        if any(name not in weights or (weights[name].shape, weights[name].dtype) != like for name, like in self._like.items()):
            return weights
        known = [name for name in self._like if self._is_there(name, weights[name])]
        if len(known) < len(self._like):
            if known:
                return weights | {name: self._resident[name] for name in known}
            self._send(weights)
        return self._resident

    def download(self, ended: State, start: State) -> State:
        """Return by how much tensors on the device have moved from ``start``, on the CPU, in the usual memory order."""
        if not ended:
            return {}
        started = self.upload(start)
        moved = state.subtract(ended, {name: started[name].to(tensor) for name, tensor in ended.items()})
        return on_cpu({name: tensor.contiguous() for name, tensor in moved.items()})

    def _is_there(self, name: str, tensor: Tensor) -> bool:
        sent = self._sent.get(name)
        return sent is not None and sent[0] is tensor and sent[1] == _version(tensor)

    def _send(self, weights: State) -> None:
        self._resident = _together({name: weights[name].detach() for name in self._like}, self._device)
        self._sent = {name: (weights[name], _version(weights[name])) for name in self._like}


def on_cpu(bundle: State) -> State:
    """Return tensors on the CPU; those of an accelerator come in one transfer for each dtype, as views of what comes."""
    if all(tensor.device.type == "cpu" for tensor in bundle.values()):
        return bundle
    received = _together(bundle, torch.device("cpu"))
    torch.accelerator.synchronize()
    return received


def _together(bundle: State, device: torch.device) -> State:
    """Return contiguous copies on a device, sent in one transfer for each dtype; they are there once the device is done."""
    moved: State = {}
    for dtype in {tensor.dtype for tensor in bundle.values()}:
        part = {name: tensor for name, tensor in bundle.items() if tensor.dtype == dtype}
        room = [-(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT for tensor in part.values()]
        source = next(iter(part.values())).device
        on_gpu = "cuda" in (source.type, device.type)
        # Memory of the CPU that an accelerator reads or writes is pinned, so that the transfer runs in the background.
        here, there = (
            torch.empty(sum(room), dtype=dtype, device=place, pin_memory=on_gpu and place.type == "cpu")
            for place in (source, device)
        )
        torch._foreach_copy_(_views(part, here, room), list(part.values()))
        there.copy_(here, non_blocking=True)
        moved |= dict(zip(part, _views(part, there, room), strict=True))
    return {name: moved[name] for name in bundle}


def _views(bundle: State, memory: Tensor, room: list[int]) -> list[Tensor]:
    """Return tensors of a bundle's shapes that lie one after another in ``memory``."""
    places = zip(bundle.values(), torch.split(memory, room), strict=True)
    return [place[: tensor.numel()].view(tensor.shape) for tensor, place in places]


def _version(tensor: Tensor) -> int:
    """Return a number that changes when somebody writes to the tensor."""
    return 0 if tensor.is_inference() else tensor._version
