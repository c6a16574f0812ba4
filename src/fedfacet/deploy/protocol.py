"""Letters: the only thing that crosses between server and sites. Tensors and JSON, no code and no pickle."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from torch import Tensor

from fedfacet.errors import FedFacetError, first_line
from fedfacet.types import State

PROTOCOL = 2
_BLANK = "0" * 64
_SEALED = rb"\"seal\": \"%s"  # as JSON within JSON has it


class LetterError(FedFacetError):
    """A letter that is not read, and why; the sentence goes on from "Expected a letter of ..., but"."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What server and sites tell each other.

    Attributes:
        kind: ``hello``, ``weights``, ``query`` or ``train`` to a site; ``hello``, ``ok``, ``answer``, ``update`` or ``refusal``
            to the server.
        run: whose letter it is, 32 hexadecimal digits.
        body: JSON-able. An answer has in ``answers`` the digest of the letter that it answers.
        bundles: tensors by name, by the name of the bundle.
    """

    kind: str
    run: str
    body: Mapping[str, Any] = field(default_factory=dict)
    bundles: Mapping[str, State] = field(default_factory=dict)


def pack(letter: Letter) -> bytes:
    """Return a letter as bytes: a safetensors file whose metadata hold what is not a tensor, and the sha256 of all else.

    Equal letters are equal bytes, so that the digest of an update is that of its letter.
    """
    told = {"protocol": PROTOCOL, "kind": letter.kind, "run": letter.run, "body": dict(letter.body), "seal": _BLANK}
    tensors = {f"{bundle}|{name}": tensor for bundle, held in letter.bundles.items() for name, tensor in held.items()}
    content = safetensors.torch.save(_apart(tensors), {"fedfacet": json.dumps(told, sort_keys=True)})
    head, rest = _halves(content)
    seal = hashlib.sha256(content).hexdigest()
    return b"".join((head.replace(_SEALED % _BLANK.encode(), _SEALED % seal.encode()), rest))


def unpack(content: bytes, most_bytes: int) -> Letter:
    """Read a letter.

    Raises:
        LetterError: if it is too large, damaged, of another protocol, or no letter.
    """
    if len(content) > most_bytes:
        raise LetterError(f"it has {len(content):,} bytes, more than the {most_bytes:,} of max_letter_mb")
    told = _opened(content)
    try:
        if told["protocol"] != PROTOCOL:
            raise LetterError(f"it is of protocol {told['protocol']}, and protocol {PROTOCOL} is spoken here")
        bundles: dict[str, State] = {}
        for name, tensor in safetensors.torch.load(content).items():
            bundle, _, key = name.partition("|")
            bundles.setdefault(bundle, {})[key] = tensor
        kind, run, body = told["kind"], told["run"], told["body"]
        if not (isinstance(kind, str) and isinstance(run, str) and isinstance(body, dict)):
            raise ValueError("a field is of another type")
    except LetterError:
        raise
    except Exception as error:  # whatever a stranger's bytes make of their readers
        raise LetterError(f"it cannot be read ({type(error).__name__}: {first_line(error)})") from None
    return Letter(kind, run, body, bundles)


def _opened(content: bytes) -> dict[str, Any]:
    """Return what of a letter is not a tensor, if it is as it was sent; the tensors are not copied to be looked at."""
    with contextlib.suppress(Exception):  # whatever damage makes of a header
        head, rest = _halves(content)
        told = json.loads(json.loads(head[8:])["__metadata__"]["fedfacet"])
        seen = hashlib.sha256(head.replace(_SEALED % told["seal"].encode(), _SEALED % _BLANK.encode()))
        seen.update(rest)
        if seen.hexdigest() == told["seal"]:
            return dict(told)
    raise LetterError("it is damaged or cut short, as its sha256 shows")


def _halves(content: bytes) -> tuple[bytes, memoryview]:
    """Return a file's header with its length, and the tensors behind it."""
    size = 8 + int.from_bytes(content[:8], "little")
    return content[:size], memoryview(content)[size:]


def digest_of(content: bytes) -> str:
    """Return by what a letter is known, in answers to it and in the journal."""
    return hashlib.sha256(content).hexdigest()


def _apart(tensors: State) -> State:
    """Return tensors on the CPU, none of which shares memory with another, which safetensors would refuse."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in sorted(tensors.items()):
        own = tensor.detach().cpu().contiguous()
        shares = own.data_ptr() in seen or own.untyped_storage().nbytes() != own.nbytes
        apart[name] = own.clone() if shares else own
        seen.add(own.data_ptr())
    return apart
