"""Messages: the only thing that crosses between server and sites. Tensors and JSON, no code and no pickle."""

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedfacet.errors import FedFacetError, fault_of
from fedfacet.types import State

PROTOCOL = 2
BUNDLES = ("delta", "buffers", "extras")
PLAIN = ("num_samples", "num_steps", "step_weight", "metrics")
"""Of an update, what crosses as bundles of tensors and what as it is."""

_BLANK = "0" * 64
_SEALED = rb"\"seal\": \"%s"  # as JSON within JSON has it
_CODES = {  # in the order in which safetensors writes them
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_KINDS = {code: kind for kind, code in _CODES.items()}


class MessageError(FedFacetError):
    """A message that is not read, and why; the sentence goes on from "Expected a message of ..., but"."""


@dataclass(frozen=True, slots=True)
class Message:
    """What server and sites tell each other.

    Attributes:
        kind: ``hello``, ``weights``, ``query`` or ``train`` to a site; ``hello``, ``ok``, ``answer``, ``update`` or ``refusal``
            to the server.
        run: whose message it is, 32 hexadecimal digits.
        body: JSON-able. An answer has in ``answers`` the digest of the message that it answers.
        bundles: tensors by name, by the name of the bundle.
    """

    kind: str
    run: str
    body: Mapping[str, Any] = field(default_factory=dict)
    bundles: Mapping[str, State] = field(default_factory=dict)


def pack(message: Message) -> bytes:
    """Return a message as bytes: a safetensors file whose metadata hold what is not a tensor, and the sha256 of all else.

    Equal messages are equal bytes, so that the digest of an update is that of its message. The file is written here and not by
    safetensors, which would make three copies of a model to send one; it is byte for byte what safetensors makes.
    """
    header = {"protocol": PROTOCOL, "kind": message.kind, "run": message.run, "body": dict(message.body), "seal": _BLANK}
    tensors = {f"{bundle}|{name}": tensor for bundle, held in message.bundles.items() for name, tensor in held.items()}
    places, parts, end = {}, [], 0
    for dtype, code in _CODES.items():
        for name, tensor in sorted(tensors.items()):
            if tensor.dtype == dtype:
                part = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
                places[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [end, end + len(part)]}
                parts.append(part)
                end += len(part)
    if lost := sorted(tensors.keys() - places.keys()):
        raise MessageError(f"{lost[0]} is of {tensors[lost[0]].dtype}, which no message carries")
    head = json.dumps(
        {"__metadata__": {"fedfacet": json.dumps(header, sort_keys=True)}, **places}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    head += b" " * (-len(head) % 8)
    head = len(head).to_bytes(8, "little") + head
    seen = hashlib.sha256(head)
    for part in parts:
        seen.update(part)
    return b"".join([head.replace(_SEALED % _BLANK.encode(), _SEALED % seen.hexdigest().encode()), *parts])


def unpack(content: bytes, most_bytes: int) -> Message:
    """Read a message, whose tensors lie in its bytes and are not to be written to.

    Raises:
        MessageError: if it is too large, damaged, of another protocol, or no message.
    """
    if len(content) > most_bytes:
        raise MessageError(f"it has {len(content):,} bytes, more than the {most_bytes:,} of max_letter_mb")
    header, places, data = _opened(content)
    try:
        if header["protocol"] != PROTOCOL:
            raise MessageError(f"it is of protocol {header['protocol']}, and protocol {PROTOCOL} is spoken here")
        bundles: dict[str, State] = {}
        for name, place in places.items():
            bundle, _, key = name.partition("|")
            bundles.setdefault(bundle, {})[key] = _tensor(data, **place)
        kind, run, body = header["kind"], header["run"], header["body"]
        if not (isinstance(kind, str) and isinstance(run, str) and isinstance(body, dict)):
            raise ValueError("a field is of another type")
    except MessageError:
        raise
    except Exception as error:  # whatever a stranger's bytes make of their readers
        raise MessageError(f"it cannot be read ({fault_of(error)})") from None
    return Message(kind, run, body, bundles)


def _tensor(data: memoryview, *, dtype: str, shape: Sequence[int], data_offsets: Sequence[int]) -> Tensor:
    """Return the tensor of a place in a file, without a copy.

    Raises:
        ValueError: if nothing of that shape is there.
    """
    kind, (start, end) = _KINDS[dtype], data_offsets
    if not all(type(size) is int and 0 <= size < 2**63 for size in (*shape, start, end)):
        raise ValueError("a size is no whole number")
    if end > len(data) or end - start != math.prod(shape) * kind.itemsize:
        raise ValueError("a tensor's place is not of its size")
    if start == end:
        return torch.empty(shape, dtype=kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data[start:end], dtype=kind).view(shape)


def _opened(content: bytes) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    """Return what of a message is not a tensor, if it is as it was sent, where its tensors lie, and in what."""
    with contextlib.suppress(Exception):  # whatever damage makes of a header
        size = 8 + int.from_bytes(content[:8], "little")
        head, data = content[:size], memoryview(content)[size:]
        places = json.loads(head[8:])
        header = json.loads(places.pop("__metadata__")["fedfacet"])
        seen = hashlib.sha256(head.replace(_SEALED % header["seal"].encode(), _SEALED % _BLANK.encode()))
        seen.update(data)
        if seen.hexdigest() == header["seal"]:
            return dict(header), places, data
    raise MessageError("it is damaged or cut short, as its sha256 shows")


def digest_of(content: bytes) -> str:
    """Return by what a message is known, in answers to it and in the journal."""
    return hashlib.sha256(content).hexdigest()
