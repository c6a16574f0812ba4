"""Bundles of tensors as one run of bytes: how tasks and updates travel between processes and machines."""

import dataclasses
import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.optimizers import flattened, nested
from fedfacet.types import ClientUpdate, State

_ALIGNMENT = 16  # bytes; a view of any dtype must start at a multiple of its size
_UPDATE_BUNDLES = ("delta", "buffers", "extras", "memory")


class Entry(NamedTuple):
    """Where one tensor of a bundle lies: its first byte is at ``offset``, its entries follow in the usual memory order."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Manifest(NamedTuple):
    """What lies where in a run of ``num_bytes`` bytes, per bundle: plain data, small, to be sent ahead of it."""

    bundles: tuple[tuple[Entry, ...], ...]
    num_bytes: int


def manifest_of(bundles: Sequence[State]) -> Manifest:
    """Say where each tensor of some bundles would lie."""
    offset = 0
    placed: list[tuple[Entry, ...]] = []
    for bundle in bundles:
        entries = []
        for name, tensor in bundle.items():
            entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), offset))
            offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        placed.append(tuple(entries))
    return Manifest(tuple(placed), offset)


def write(bundles: Sequence[State], manifest: Manifest, target: Tensor) -> None:
    """Copy bundles into ``target``, uint8 of shape (at least ``manifest.num_bytes``,)."""
    for bundle, entries in zip(bundles, manifest.bundles, strict=True):
        for entry in entries:
            _view(entry, target).copy_(bundle[entry.name])


def read(manifest: Manifest, source: Tensor) -> list[State]:
    """Return the bundles that lie in ``source``, as views of it: whoever reuses it must copy them first."""
    return [{entry.name: _view(entry, source) for entry in entries} for entries in manifest.bundles]


def _view(entry: Entry, data: Tensor) -> Tensor:
    size = entry.dtype.itemsize * int(torch.Size(entry.shape).numel())
    return data[entry.offset : entry.offset + size].view(entry.dtype).view(entry.shape)


def pack_update(update: ClientUpdate) -> tuple[tuple[type[ClientUpdate], dict[str, Any]], list[State]]:
    """Take an update apart: its class and numbers, and its bundles."""
    values = {field.name: getattr(update, field.name) for field in dataclasses.fields(update)}
    bundles = [values.pop(name) for name in _UPDATE_BUNDLES]
    return (type(update), values), bundles


def unpack_update(numbers: tuple[type[ClientUpdate], Mapping[str, Any]], bundles: Sequence[State]) -> ClientUpdate:
    """Return the update of which ``pack_update`` made numbers and bundles."""
    kind, values = numbers
    return kind(**{**values, **dict(zip(_UPDATE_BUNDLES, bundles, strict=True))})


def pack_half(half: HalfTrained) -> tuple[dict[str, Any], list[State]]:
    """Take a half-trained client apart: its numbers, and its bundles."""
    optimizer = flattened(half.optimizer)
    tensors = {key: value.cpu() for key, value in optimizer.items() if isinstance(value, Tensor)}
    generators = {str(position): tensor for position, tensor in enumerate(half.generators)}
    plain = {key: value for key, value in optimizer.items() if key not in tensors}
    numbers = {"num_steps": half.num_steps, "loss_sum": half.loss_sum, "num_seen": half.num_seen, "optimizer": plain}
    return numbers, [half.weights, tensors, generators]


def unpack_half(numbers: Mapping[str, Any], bundles: Sequence[State]) -> HalfTrained:
    """Put a half-trained client together again."""
    weights, tensors, generators = bundles
    optimizer = nested(numbers["optimizer"] | tensors)
    return HalfTrained(**{**numbers, "optimizer": optimizer}, weights=weights, generators=list(generators.values()))


class Failure(NamedTuple):
    """An exception in place of a result, and a note that says where it comes from."""

    error: Exception
    note: str

    @classmethod
    def of(cls, error: Exception, where: str) -> "Failure":
        """Return the failure; its error is a ``RuntimeError`` in place of one that cannot be pickled."""
        text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, f"{where}:\n{text}")


def unless_failed(body: Any) -> Any:
    """Return a result, or raise the exception that came in its place."""
    if isinstance(body, Failure):
        body.error.add_note(body.note)
        raise body.error
    return body
