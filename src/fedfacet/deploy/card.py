"""What server and sites agree on about the data, without any data."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.data.augmentation import CropAndFlip, ZoomTurnAndFlip
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.deploy.files import made, table_of

_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}
_AUGMENTATIONS = {"crop_and_flip": CropAndFlip, "zoom_turn_and_flip": ZoomTurnAndFlip}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A data card.

    Attributes:
        name: of the data.
        class_names: Y names; a sample's class is a position in it.
        attribute_names: A names, likewise.
        input_shape: of one input, (C, H, W) for images.
        input_dtype: ``uint8`` for images, else ``float32`` or ``int64``.
        mean: of the images' channels, scaled to [0, 1]; the same at all sites.
        std: of the images' channels.
        columns: of a table's rows, those that are inputs, in their order: ``{age: {mean: 50.0, std: 12.0}, sex: [f, m]}``. A
            number is scaled by them, and of any other column each value is an input of 0 or 1.
        augmentation: of training images: ``{crop_and_flip: {padding: 4}}`` or another class of ``data/augmentation.py``.
    """

    name: str
    class_names: Sequence[str]
    input_shape: Sequence[int]
    input_dtype: str = "uint8"
    attribute_names: Sequence[str] = ("none",)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    augmentation: dict[str, dict[str, Any]] | None = None
    columns: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what no data can be."""
        if self.input_dtype not in _DTYPES:
            raise ValueError(f"`input_dtype` is one of {', '.join(_DTYPES)}, not {self.input_dtype!r}")
        if (self.input_dtype == "uint8") != (self.mean is not None and self.std is not None):
            raise ValueError("images (uint8) have a `mean` and a `std`, and nothing else has")
        if unknown := [name for name in self.augmentation or () if name not in _AUGMENTATIONS]:
            raise ValueError(f"`augmentation` is one of {', '.join(_AUGMENTATIONS)}, not {unknown[0]!r}")
        for name in ("class_names", "attribute_names", "input_shape"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not (self.class_names and self.attribute_names and self.input_shape and math.prod(self.input_shape) > 0):
            raise ValueError("classes, attributes and an input have a size of 1 at least")
        for name in ("class_names", "attribute_names"):
            if len(set(names := getattr(self, name))) < len(names):
                raise ValueError(f"`{name}` has a name twice")
        if self.columns is not None:
            self._check_columns(self.columns)

    def _check_columns(self, columns: Any) -> None:
        width = 0
        for name, column in columns.items() if isinstance(columns, dict) else [("columns", None)]:
            if isinstance(column, dict) and column.keys() == {"mean", "std"} and _is_scale(column):
                width += 1
            elif isinstance(column, list) and column and all(isinstance(value, str) for value in column):
                width += len(set(column)) if len(set(column)) == len(column) else -len(column)
            else:
                raise ValueError(f"`columns` has for {name!r} a mean and a std above 0, or a list of texts, not {column!r}")
        if (self.input_dtype, tuple(self.input_shape)) != ("float32", (width,)):
            raise ValueError(f"`columns` come to float32 inputs of shape ({width},), each value of a list once")

    @classmethod
    def read(cls, file: Path) -> "Card":
        """Return the card of a yaml file.

        Raises:
            ConfigError: if it is none.
        """
        return made(cls, table_of(file), file)

    @property
    def plain(self) -> dict[str, Any]:
        """Its values, as JSON and yaml know them."""
        table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {name: value for name, value in table.items() if name != "columns" or value is not None}

    @property
    def digest(self) -> str:
        """The sha256 over all of it, as text."""
        return hashlib.sha256(json.dumps(self.plain, sort_keys=True).encode()).hexdigest()

    def misfit(self, x: NDArray[Any], y: NDArray[Any], a: NDArray[Any]) -> str | None:
        """Say what of some samples is not as the card says; ``None`` if all is."""
        if x.shape[1:] != self.input_shape or str(x.dtype) != self.input_dtype:
            return f"inputs are {x.dtype} of shape {x.shape[1:]}, not {self.input_dtype} of {self.input_shape}"
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            return "inputs hold NaN or infinity"
        for name, labels, names in (("y", y, self.class_names), ("a", a, self.attribute_names)):
            if labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
                return f"`{name}` is {labels.dtype} of shape {labels.shape}, not a whole number for each of {len(x)} samples"
            if len(wrong := labels[(labels < 0) | (labels >= len(names))]):
                return f"`{name}` holds {wrong[0]}, and there are {len(names)} names"
        return None if len(x) else "there are no samples"

    def dataset(self, *samples: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> Dataset:
        """Return samples of several clients one after another, and behind them a blank one, which tests models and nobody owns.

        The server has the blank one alone.
        """
        blank = np.zeros((1, *self.input_shape), self.input_dtype), np.zeros(1, np.int64), np.zeros(1, np.int64)
        x, y, a = (np.concatenate(parts) for parts in zip(*samples, blank, strict=True))
        augmentation = None
        for name, arguments in (self.augmentation or {}).items():
            augmentation = _AUGMENTATIONS[name](**arguments)
        return Dataset(
            inputs=InMemoryInputs(torch.from_numpy(x)),
            y=y.astype(np.int64),
            a=a.astype(np.int64),
            train=np.arange(len(y) - 1),
            test=np.array([len(y) - 1]),
            val=None,
            class_names=tuple(self.class_names),
            attribute_names=tuple(self.attribute_names),
            mean=None if self.mean is None else tuple(self.mean),
            std=None if self.std is None else tuple(self.std),
            augmentation=augmentation,
        )


def _is_scale(column: dict[str, Any]) -> bool:
    numbers = all(type(value) in (int, float) and math.isfinite(value) for value in column.values())
    return numbers and column["std"] > 0


def card_of(dataset: Dataset, name: str) -> Card:
    """Return the card of a data set that lies in one place, for a pilot."""
    known = {kind: short for short, kind in _AUGMENTATIONS.items()}
    augmentation = None
    if dataset.augmentation is not None:
        augmentation = {known[type(dataset.augmentation)]: dataclasses.asdict(dataset.augmentation)}  # type: ignore
    return Card(
        name=name,
        class_names=dataset.class_names,
        attribute_names=dataset.attribute_names,
        input_shape=dataset.input_shape,
        input_dtype=str(dataset.inputs.fetch(dataset.test[:1]).dtype).removeprefix("torch."),
        mean=dataset.mean,
        std=dataset.std,
        augmentation=augmentation,
    )
