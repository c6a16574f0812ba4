"""Tensors as the bytes of a file that holds their digest, and answers of many clients as two tensors."""

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

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


Packed = dict[str, tuple[Mapping[int, Any], Mapping[Any, Any]]]
"""Query -> answers and what ``pack`` made of them."""

_KINDS = {"list": list, "tuple": tuple}
_DEEPEST = 8  # a list that holds itself has no end


def pack(answers: Mapping[int, Any]) -> Mapping[Any, Any]:
    """Return answers of one form as tensors, and others as they are.

    Answers are of one form if all are floats, or all whole numbers that 64 bits hold, or all lists (tuples) of one length whose
    entries are of one form in turn.

    Args:
        answers: client -> plain data.

    Returns:
        ``{"clients": (N,), "entries": (M,), "levels": [(kind, length), ...]}``, levels from the outermost; or ``answers``.

    Example:
        >>> packed = pack({0: [0.5, 1.0], 7: [0.0, 2.0]})
        >>> packed["entries"].tolist(), packed["levels"]
        ([0.5, 1.0, 0.0, 2.0], [('list', 2)])
        >>> unpack(packed)
        {0: [0.5, 1.0], 7: [0.0, 2.0]}
    """
    entries = list(answers.values())
    levels: list[tuple[str, int]] = []
    while (kinds := set(map(type, entries))) and kinds <= {list, tuple}:
        lengths = set(map(len, entries))
        if len(kinds) > 1 or len(lengths) > 1 or 0 in lengths or len(levels) == _DEEPEST:
            return answers
        levels.append((kinds.pop().__name__, lengths.pop()))
        entries = list(itertools.chain.from_iterable(entries))
    if kinds not in ({float}, {int}) or set(map(type, answers)) != {int}:
        return answers
    try:
        clients = torch.tensor(list(answers), dtype=torch.int64)
        values = torch.tensor(entries, dtype=torch.float64 if kinds == {float} else torch.int64)
    except (RuntimeError, OverflowError, ValueError):  # a whole number of more than 64 bits
        return answers
    return {"clients": clients, "entries": values, "levels": levels}


def pack_all(disclosures: Mapping[str, Mapping[int, Any]], packed: Packed) -> dict[str, Mapping[Any, Any]]:
    """Pack the answers to all queries; those that are the objects of the last call are not gone through again."""
    for query, answers in disclosures.items():
        if packed.get(query, (None,))[0] is not answers:
            packed[query] = answers, pack(answers)
    return {query: packed[query][1] for query in disclosures}


def unpack(saved: Mapping[Any, Any]) -> Mapping[int, Any]:
    """Return what ``pack`` was given.

    Raises:
        ValueError: if it is not what ``pack`` returns.
    """
    if saved.keys() != {"clients", "entries", "levels"}:
        return saved
    clients, column, levels = saved["clients"], saved["entries"], saved["levels"]
    fits = (
        isinstance(clients, Tensor)
        and isinstance(column, Tensor)
        and clients.dtype == torch.int64
        and column.dtype in (torch.float64, torch.int64)
        and clients.dim() == column.dim() == 1
        and isinstance(levels, list)
        and all(isinstance(level, tuple) and len(level) == 2 for level in levels)
        and all(kind in list(_KINDS) and type(length) is int and length > 0 for kind, length in levels)
        and len(column) == len(clients) * math.prod(length for _, length in levels)
    )
    if not fits:
        raise ValueError("answers of its clients are not what a run saves")
    entries = column.tolist()
    for kind, length in reversed(levels):
        entries = [_KINDS[kind](entries[start : start + length]) for start in range(0, len(entries), length)]
    return dict(zip(clients.tolist(), entries, strict=True))
