"""Tensors as the bytes of a safetensors file whose metadata hold their digest."""

import json

import safetensors.torch

from fedfacet import state
from fedfacet.types import State


def sealed(tensors: State) -> bytes:
    """Return what ``unsealed`` reads."""
    own = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(own, {"digest": state.digest(own)})


def unsealed(content: bytes) -> State:
    """Return the tensors of a file. One that an older version wrote has no digest.

    Raises:
        ValueError: if they have another digest.
        SafetensorError: if the content is no such file.
    """
    tensors = safetensors.torch.load(content)
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    if (head.get("__metadata__") or {}).get("digest", digest := state.digest(tensors)) != digest:
        raise ValueError("it is damaged, as its digest shows")
    return tensors
