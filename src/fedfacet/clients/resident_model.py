"""A model on an accelerator: the round's model goes there once, and each client's update comes back in one transfer."""

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.types import State

_ALIGNMENT = 64  # bytes; a view of any dtype must start at a multiple of its size


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

        A model of which no tensor is there yet is sent in one transfer and kept in place of the last one. Of a model that
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
        started = self.upload(start)
        moved = state.subtract(ended, {name: started[name].to(self._device) for name in ended})
        return {name: tensor.contiguous() for name, tensor in on_cpu(moved).items()}

    def _is_there(self, name: str, tensor: Tensor) -> bool:
        sent = self._sent.get(name)
        return sent is not None and sent[0] is tensor and sent[1] == _version(tensor)

    def _send(self, weights: State) -> None:
        own = {name: weights[name].detach() for name in self._like}
        num_bytes = sum(map(_room, own.values()))
        staged = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        torch._foreach_copy_(list(_views(own, staged).values()), list(own.values()))
        self._resident = _views(own, staged.to(self._device, non_blocking=True))
        self._sent = {name: (weights[name], _version(weights[name])) for name in self._like}


def on_cpu(bundle: State) -> State:
    """Return tensors on the CPU; those of an accelerator come in one transfer, as views of one run of bytes."""
    device = next(iter(bundle.values())).device if bundle else torch.device("cpu")
    if device.type == "cpu":
        return bundle
    packed = torch.empty(sum(map(_room, bundle.values())), dtype=torch.uint8, device=device)
    torch._foreach_copy_(list(_views(bundle, packed).values()), list(bundle.values()))
    received = torch.empty(len(packed), dtype=torch.uint8, pin_memory=device.type == "cuda")
    received.copy_(packed, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return _views(bundle, received)


def _views(like: State, memory: Tensor) -> State:
    """Return contiguous tensors with the names, shapes and dtypes of a bundle that share ``memory``."""
    views, start = {}, 0
    for name, tensor in like.items():
        views[name] = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor)
    return views


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _version(tensor: Tensor) -> int:
    """Return a number that changes when somebody writes to the tensor."""
    return 0 if tensor.is_inference() else tensor._version
