"""Save and load the federation's state: one file, written whole or not at all, sealed by its sha256 and free of code.

A checkpoint is what ``torch.save`` writes, and behind it a line with the format and the sha256 of what stands before; nothing
is used before that is verified. ``torch.load(path, weights_only=True)`` reads it too, but does not verify. Clients' memory lies
beside the checkpoints of a run folder, see ``ClientMemory``.
"""

import hashlib
import io
import json
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from fedfacet.errors import CheckpointError
from fedfacet.moved import with_current_names
from fedfacet.records import FederationState
from fedfacet.storage import tensors
from fedfacet.storage.atomic_write import write_synced
from fedfacet.storage.client_memory import ClientMemory
from fedfacet.storage.fitting import is_whole
from fedfacet.storage.regular_file import bytes_of

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
"""In ``checkpoints/`` of a run folder: the one that a resumed run goes on from, and the one before it."""

_FORMAT = 2
_SEAL = "\nfedfacet checkpoint {}, sha256 {}\n"
_SEAL_SIZE = len(_SEAL.format(_FORMAT, 64 * "0"))
_PARTS = {field.name for field in fields(FederationState)} - {"slots"}
"""Of a state, beside the slots of its mechanisms, which a file has side by side with them."""
_ADDED = frozenset({"stopped", "frozen_digest"})
"""Parts that older checkpoints do not have; they are as a run begins."""

_MOST_BYTES = 1 << 40
_MOST_ROUNDS = 10**9
_MOST_ENTRIES = 10**8
_DEEPEST = 50


def dumps(
    state: FederationState, config: Mapping[str, Any], memory: str = "", packed: tensors.Packed | None = None
) -> memoryview:
    """Return a checkpoint as bytes, in which nothing that happens to the state afterwards shows.

    Args:
        state: tensors and plain data only; its ``memory`` is left out.
        config: the resolved configuration that the state belongs to, plain JSON-able data.
        memory: the index of the clients' memory, as ``ClientMemory.pack`` returns it.
        packed: what was packed for the last checkpoint; answers that are the same objects are taken from it, others noted.

    Raises:
        CheckpointError: if the state holds anything else, or itself, which no resume could read back.
    """
    # Not asdict() on the whole, which would copy every tensor.
    saved = {**state.slots, **{name: getattr(state, name) for name in _PARTS}, "memory": memory}
    if not state.frozen_digest:  # of a model that is trained whole: the file is what it always was
        del saved["frozen_digest"]
    saved["disclosures"] = tensors.pack_all(state.disclosures, packed if packed is not None else {})
    try:
        _check_plain(saved)
    except ValueError as fault:
        raise CheckpointError(f"Expected a state that could be read back, but {fault}: change what makes it.") from None
    for name, part in saved.items():
        _check_readable(part, name)
    content = io.BytesIO()
    torch.save({"format": _FORMAT, "config": json.dumps(config), "state": saved}, content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write what ``dumps`` returned, and its seal, to the disk.

    Args:
        path: of the checkpoint, in a folder that exists.
        content: of the checkpoint.

    Raises:
        FedFacetError: if the folder is gone.
    """
    write_synced(path, [content, _SEAL.format(_FORMAT, hashlib.sha256(content).hexdigest()).encode()])


def save(path: Path, state: FederationState, config: Mapping[str, Any]) -> None:
    """Write a checkpoint and the clients' memory to a run folder.

    Args:
        path: ``checkpoints/NAME.ckpt`` in the run folder; folders are made where missing.
        state: see ``dumps``.
        config: see ``dumps``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    memory = ClientMemory(path.absolute().parents[1])
    index, files = memory.pack(state.memory)
    memory.write(files)
    write(path, dumps(state, config, index))


def load(path: Path) -> tuple[FederationState, dict[str, Any]]:
    """Read a checkpoint and the clients' memory that belongs to it.

    Args:
        path: ``checkpoints/NAME.ckpt`` in a run folder.

    Returns:
        The state and the configuration it belongs to.

    Raises:
        CheckpointError: if a file is missing, damaged or of another format; where the checkpoint before is whole, it is named.
    """
    try:
        saved, config = verified(path)
        memory = ClientMemory(path.absolute().parents[1]).read(saved["memory"])
        if strangers := [client_id for client_id in memory if client_id >= len(saved["participation_counts"])]:
            raise CheckpointError(f"Expected {path} to know client {strangers[0]}, whose memory it has, but it does not")
    except CheckpointError as fault:
        raise CheckpointError(f"{fault}: {_way_on(path)}.") from None
    slots = {name: saved[name] for name in saved.keys() - _PARTS if saved[name]}  # older files have empty ones
    return FederationState(**{name: saved[name] for name in saved.keys() & _PARTS} | {"memory": memory, "slots": slots}), config


def memory_of(path: Path) -> str:
    """Return the index of the clients' memory that a checkpoint refers to; empty where it refers to none or is damaged."""
    with suppress(CheckpointError):
        return str(verified(path)[0]["memory"])
    return ""


def asked_for(run_dir: Path, resume: str) -> Path:
    """Return the checkpoint that ``resume=`` means: the last one, unless it names the one before."""
    return run_dir / "checkpoints" / (PREVIOUS if Path(resume).name == PREVIOUS else LAST)


def make_last(path: Path) -> None:
    """Have a run go on from a checkpoint of its folder, also when it is resumed again; later ones are given up."""
    if path.name != LAST:
        write_synced(path.with_name(LAST), [bytes_of(path, _MOST_BYTES)])


def _way_on(path: Path) -> str:
    """Return the remedy for a checkpoint that cannot be used."""
    if path.name == LAST:
        previous = path.with_name(PREVIOUS)
        with suppress(CheckpointError):
            escaped = str(previous).replace("'", "\\'")
            given = f"resume={previous}" if re.fullmatch(r"[\w./+-]+", str(previous)) else f"\"resume='{escaped}'\""
            return f"the one before it is whole, so go on after round {load(previous)[0].round} with {given}"
    return "check `resume`, bring the file back, or start a new run"


def verified(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state, with an index in place of the clients' memory, and the configuration.

    Raises:
        CheckpointError: without a remedy.
    """
    try:
        content = bytes_of(path, _MOST_BYTES)
        _check_seal(content)
        _check_archive(content)
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
            raise ValueError("it holds something else")
        config = json.loads(with_current_names(saved["config"]))
        _check_plain(saved["state"])
        _check_plain(config)
        _unpack(saved["state"])
        _check_state(saved["state"])
        _check_config(config)
    except FileNotFoundError:
        raise CheckpointError(f"Expected a checkpoint at {path}, but there is none") from None
    except ValueError as error:
        fault = str(error)
    except Exception as error:
        fault = f"it cannot be read ({type(error).__name__})"
    else:
        return saved["state"], config
    raise CheckpointError(f"Expected {path} to be a whole checkpoint of format {_FORMAT}, but {fault}")


def _check_seal(content: bytes) -> None:
    seal = re.fullmatch(rb"\nfedfacet checkpoint (\d), sha256 ([0-9a-f]{64})\n", content[-_SEAL_SIZE:])
    if seal is None and content[-22:-18] == b"PK\5\6":  # the end of a zip archive: all that format 1 was
        raise ValueError(
            "it has no sha256 at its end: it is of format 1, which earlier versions wrote, or no checkpoint at all"
        )
    if seal is None:
        raise ValueError("it is truncated or not a checkpoint")
    if int(seal[1]) != _FORMAT:
        raise ValueError(f"it is of format {int(seal[1])}")
    if hashlib.sha256(memoryview(content)[:-_SEAL_SIZE]).hexdigest().encode() != seal[2]:
        raise ValueError("it is damaged, as its sha256 shows")


def _check_archive(content: bytes) -> None:
    """Verify the sums that the archive has of its own parts: ``torch.load`` reads on where they are wrong."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("parts of it are compressed, as torch writes none, and may unpack to more than fits in memory")
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} in it is damaged, as its CRC shows")


def _check_readable(value: Any, where: str) -> None:
    """Refuse to save what would not be read back, numpy's numbers among it: a resume runs no code of a file."""
    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            _check_readable(key, f"a key of {where}")
            _check_readable(entry, f"{where}.{key}")
    elif type(value) in (list, tuple, set):
        for position, entry in enumerate(value):
            _check_readable(entry, f"{where}.{position}")
    elif not isinstance(value, Tensor) and type(value) not in (NoneType, bool, int, float, complex, str, bytes):
        raise CheckpointError(
            f"Expected a state of tensors and plain data, but `{where}` is of the type {type(value).__name__}, which could not "
            "be read back: make it a Python number, a list or a tensor where it comes from."
        )


def _check_plain(value: Any) -> None:
    """Refuse what nobody could walk through: too deep, holding itself, or few lists that hold one another very often."""
    entries: dict[int, int] = {}

    def count(value: Any, depth: int) -> int:
        if isinstance(value, Tensor) and not is_whole(value):
            raise ValueError("a tensor lacks its numbers")
        if not isinstance(value, dict | list | tuple | set):
            return 1
        if id(value) not in entries:
            if depth > _DEEPEST:
                raise ValueError(f"its data is nested more than {_DEEPEST} deep")
            held = value.values() if isinstance(value, dict) else value
            entries[id(value)] = 1 + sum(count(entry, depth + 1) for entry in held)
            if entries[id(value)] > _MOST_ENTRIES:
                raise ValueError(f"its data has more than {_MOST_ENTRIES} entries")
        return entries[id(value)]

    count(value, 0)


def _unpack(saved: dict[str, Any]) -> None:
    """Bring answers back to the form that a run has them in; what is no table is left to ``_check_state``."""
    disclosures = saved.get("disclosures")
    if isinstance(disclosures, dict) and _is_table(disclosures, dict):
        saved["disclosures"] = {query: tensors.unpack(answers) for query, answers in disclosures.items()}


def _check_state(saved: Mapping[str, Any]) -> None:
    if not saved.keys() >= _PARTS - _ADDED:
        raise ValueError("its state lacks a part")
    rounds, counts, disclosures = saved["round"], saved["participation_counts"], saved["disclosures"]
    for name, fits in {
        "round": type(rounds) is int and 0 <= rounds <= _MOST_ROUNDS,
        "model": _is_table(saved["model"], Tensor),
        "memory": isinstance(saved["memory"], str) and re.fullmatch("([0-9a-f]{64})?", saved["memory"]),
        "disclosures": _is_table(disclosures, dict) and all(_is_table(kept, object, int) for kept in disclosures.values()),
        "participation_counts": isinstance(counts, Tensor) and counts.dtype == torch.int64 and counts.dim() == 1,
        "callbacks": _is_table(saved["callbacks"], dict),
        "partition_digest": isinstance(saved["partition_digest"], str),
        "data_digest": isinstance(saved["data_digest"], str),
        **{name: isinstance(saved[name], dict) for name in saved.keys() - _PARTS},
        "stopped": isinstance(saved.get("stopped", ""), str),
        "frozen_digest": isinstance(saved.get("frozen_digest", ""), str),
    }.items():
        if not fits:
            raise ValueError(f"its `{name}` is not what a run saves")


def _check_config(config: Any) -> None:
    if not isinstance(config, dict):
        raise ValueError("its configuration is none")
    for name in ("federation", "engine", "callbacks", "choices"):
        if not isinstance(config.get(name, {}), dict):
            raise ValueError(f"the `{name}` of its configuration is none")
    if not all(isinstance(callback, dict) for callback in config.get("callbacks", {}).values()):
        raise ValueError("the `callbacks` of its configuration are none")


def _is_table(value: Any, of: type, keys: type = str) -> bool:
    return isinstance(value, dict) and all(isinstance(name, keys) and isinstance(entry, of) for name, entry in value.items())
