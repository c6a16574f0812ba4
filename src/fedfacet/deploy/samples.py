"""The samples of a site's clients, read from the site's own files by readers that an operator names."""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.dataset import InputStore
from fedfacet.data.features import numbers_of
from fedfacet.data.hf import HuggingFace
from fedfacet.data.image_folder import ImageFolder
from fedfacet.data.reading import reading
from fedfacet.data.tables import header_of, one_hot, read_table
from fedfacet.deploy.card import Card
from fedfacet.deploy.files import made
from fedfacet.deploy.settings import Holding
from fedfacet.errors import CheckpointError, ConfigError, DatasetCorruptError
from fedfacet.storage.atomic_write import write_synced

Samples = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Npz:
    """Arrays ``x``, ``y`` and ``a`` that numpy has saved; without attributes ``a`` is left out."""

    file: str

    def read(self, folder: Path, card: Card) -> Samples:
        file = folder / self.file
        remedy = "write it with `numpy.savez(file, x=x, y=y, a=a)`"
        with reading(file, "a client's arrays", remedy), np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
            return x, y, arrays["a"] if "a" in arrays else np.zeros(len(y), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Csv:
    """Rows of a csv file; the card's ``columns`` say which of them are inputs, and how they are scaled and coded."""

    file: str
    target: str = "class"
    attribute: str = "attribute"

    def read(self, folder: Path, card: Card) -> Samples:
        file = folder / self.file
        if card.columns is None:
            raise ConfigError(f"Expected a data card with `columns`, which say what of {file} are inputs, but it has none.")
        expected, remedy = "a csv file", "correct the file"
        names = header_of(file, expected=expected, remedy=remedy)
        table = read_table(file, names, expected=expected, remedy=remedy)
        if lacking := [name for name in card.columns if name not in table.columns]:
            raise DatasetCorruptError(f"Expected a column `{lacking[0]}` in {file}, as the data card says, but there is none.")
        parts = []
        for name, column in card.columns.items():
            if isinstance(column, Mapping):
                scaled = (numbers_of(table, name) - column["mean"]) / column["std"]
                parts.append(scaled.astype(np.float32)[:, None])
            else:
                parts.append(one_hot(table.codes(name, column), len(column)))
        return np.concatenate(parts, axis=1), *_labels(table.columns, self.target, self.attribute, card, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageFolder:
    """Images in folders, as ``dataset=image_folder`` reads them, resized to the card's size."""

    folder: str
    folders: Sequence[str] = ("class",)
    labels: str | None = None
    file: str = "file"
    target: str = "class"
    attribute: str = "attribute"

    def read(self, folder: Path, card: Card) -> Samples:
        images = folder / self.folder
        chosen = {name: getattr(self, name) for name in ("folders", "labels", "file", "target")}
        source = ImageFolder(**_located(images, card), **chosen)
        store, columns = source.labelled()
        store.check()
        return _inputs(store), *_labels(columns, self.target, self.attribute, card, images)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HuggingFace:
    """What ``datasets.save_to_disk`` wrote, as ``dataset=hf`` reads it."""

    folder: str
    input: str = "image"
    target: str = "label"
    attribute: str | None = None

    def read(self, folder: Path, card: Card) -> Samples:
        rows = folder / self.folder
        located = _located(rows, card if card.mean is not None else None)
        source = HuggingFace(**located, input=self.input, target=self.target, attribute=self.attribute)
        store, columns = source.labelled()
        return _inputs(store), *_labels(columns, self.target, self.attribute, card, rows)


READERS: Mapping[str, Any] = {"npz": _Npz, "csv": _Csv, "image_folder": _ImageFolder, "hf": _HuggingFace}
"""What an operator calls a reader -> its class.

Its fields are what may stand beside ``reader`` and ``holdout``. ``read(folder, card)`` returns inputs, classes and attribute
values, as the card numbers them; paths are seen from ``folder``.
"""


def read_samples(clients: Mapping[str, Holding], card: Card) -> dict[str, Samples]:
    """Read every client's samples.

    Raises:
        ConfigError: if an operator's settings are none of a reader's, or the card does not suit it.
        FedFacetError: if a file is missing or cannot be read, or holds other data than the card says.
    """
    found = {}
    for name, held in clients.items():
        if str(held.reader) not in READERS:
            raise ConfigError(
                f"Expected the `reader` of {held.where} to be one of {', '.join(READERS)}, but got {held.reader!r}: fix it."
            )
        reader = made(READERS[held.reader], held.options, held.where)
        try:
            x, y, a = reader.read(held.folder, card)
        except (TypeError, ValueError) as error:  # settings of another type, as yaml may hold them
            raise ConfigError(f"Expected {held.where} to hold settings of `{held.reader}`, but got this: {error}.") from None
        if (fault := card.misfit(x, y, a)) is not None:
            path = held.folder / getattr(reader, "folder", getattr(reader, "file", ""))
            raise DatasetCorruptError(
                f"Expected {path} to fit the data card {card.name!r}, but {fault}: fix the file or the card."
            )
        found[name] = x, y, a
    return found


def _located(path: Path, card: Card | None) -> dict[str, Any]:
    """Return where a source finds a folder, and to which size it brings images.

    Raises:
        ConfigError: if the card's inputs are no images of the kind that readers make.
    """
    if card is None:
        return {"root": path.parent, "folder": path.name}
    size = card.input_shape[-1]
    if card.input_dtype != "uint8" or tuple(card.input_shape) != (3, size, size):
        raise ConfigError(
            f"Expected a data card of square RGB images, uint8 of shape (3, S, S), to read {path}, but it has "
            f"{card.input_dtype} of {tuple(card.input_shape)}."
        )
    return {"root": path.parent, "folder": path.name, "image_size": size}


def _inputs(store: InputStore) -> NDArray[Any]:
    return store.fetch(np.arange(len(store))).contiguous().numpy()


def _labels(
    columns: Mapping[str, Sequence[str]], target: str, attribute: str | None, card: Card, source: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return classes and attribute values by the card's names; one attribute value needs no column.

    Raises:
        DatasetCorruptError: if a column is missing, or has a value that the card lacks.
    """
    if "split" in columns and "split" not in (target, attribute):
        raise DatasetCorruptError(
            f"Expected samples of {source} that all may train, but `split` says who tests: leave that out, and give `holdout`."
        )
    coded = []
    for setting, given, names in (("target", target, card.class_names), ("attribute", attribute, card.attribute_names)):
        column = str(given)
        if setting == "attribute" and len(names) == 1 and column not in columns:
            coded.append(np.zeros(len(columns[target]), np.int64))
            continue
        if column not in columns:
            raise DatasetCorruptError(
                f"Expected `{setting}` to name a column of {source}, but got {given!r}: choose one of {', '.join(columns)}."
            )
        known = {name: position for position, name in enumerate(names)}
        if unknown := sorted(set(columns[column]) - known.keys()):
            raise DatasetCorruptError(
                f"Expected every `{column}` of {source} to be one of the data card's {', '.join(names)}, but got "
                f"{unknown[0][:40]!r}: correct it, or agree on another card."
            )
        coded.append(np.array([known[entry] for entry in columns[column]], np.int64))
    return coded[0], coded[1]


def digest_of_samples(samples: Samples, key: bytes = b"") -> str:
    """Return by what a client's samples are known again when a run goes on, and only by a site that has the key.

    Without a key it is the sha256 that sites told before they had one, by which whoever guesses the samples knows them.
    """
    sha = hmac.new(key, digestmod=hashlib.sha256) if key else hashlib.sha256()
    for array in samples:
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def site_key(state: Path, *, keep: bool) -> tuple[bytes, Sequence[str]]:
    """Return the key of a site, made when it is first wanted, and the runs that began before there was one.

    Args:
        state: the site's folder, in which the key stays.
        keep: whether a new key is written.

    Raises:
        CheckpointError: if the file of the key is damaged.
    """
    file = state / "key.json"
    if file.is_file():
        try:
            held = json.loads(file.read_text(encoding="utf-8"))
            key, before = bytes.fromhex(held["key"]), [str(run) for run in held["before"]]
        except (ValueError, LookupError, TypeError):
            key, before = b"", []
        if len(key) != 32:
            raise CheckpointError(f"Expected the key of the site in {file}, but it is damaged: bring it back.")
        return key, before
    folders = (state / "letters", state / "memory")
    key, before = secrets.token_bytes(32), sorted({run.name for one in folders if one.is_dir() for run in one.iterdir()})
    if (state / "audit.jsonl").is_file():
        before = sorted({*before, *re.findall(r'"run": "([0-9a-f]{32})"', (state / "audit.jsonl").read_text(encoding="utf-8"))})
    if keep:
        write_synced(file, [json.dumps({"key": key.hex(), "before": before}).encode()])
        file.chmod(0o600)
    return key, before
