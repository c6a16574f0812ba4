"""Data sets in the format of Hugging Face's ``datasets``, from disk or from its cache."""

import contextlib
import copy
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedfacet import rng
from fedfacet.arguments import check_whole, check_within
from fedfacet.data.arrays import inputs_of
from fedfacet.data.dataset import Dataset, InMemoryInputs, InputStore
from fedfacet.data.entries import check_visible, shown, visible
from fedfacet.data.images import FORMATS, IMAGENET_MEAN, IMAGENET_STD, LazyImages, in_rgb
from fedfacet.data.labels import SPLITS, read_labels
from fedfacet.data.source import DatasetSource, located_inside
from fedfacet.data.texts import tokens_of, write_texts
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, first_line
from fedfacet.optional import required

log = logging.getLogger(__name__)

_SPLIT = "split"


@dataclass(eq=False, kw_only=True)
class HuggingFace(DatasetSource):
    """Images, texts or rows of numbers that ``datasets.save_to_disk`` wrote, or that ``datasets.load_dataset`` knows.

    The splits called ``train``, ``validation`` and ``test`` are what their names say; without a ``test`` all samples of these
    splits are put together, and ``test_fraction`` of every (class, attribute) group tests. Images become RGB, are resized and
    normalised by ImageNet's statistics; rows of numbers go into a model as they are. Texts become rows of tokens, padded by -1
    at their end; ``model=causal_lm`` reads those. Needs the package ``datasets`` (``pip install fedfacet[hf]``), which runs no
    code of a data set, and for texts ``tokenizers`` (``pip install fedfacet[text]``).

    Args:
        root: the folder that holds the one called ``folder``.
        folder: what ``save_to_disk`` wrote; not read where there is a ``name``.
        name: of a data set on the Hub, or of a folder with files that ``load_dataset`` reads; ``None`` for the folder.
        subset: of that data set; ``None`` where it has none.
        input: the column that a model is given.
        target: the column that is the class: class labels, whole numbers or words.
        attribute: the one that is the attribute; ``None`` for none.
        columns: further ones, of which clients may be made: ``partition=natural partition.label=speaker``.
        tokenizer: of a column of texts: a ``tokenizer.json`` inside ``root``, or a folder with one; ``None`` where there are no
            texts.
        vocabulary: how many tokens a model is made for, which ``model.vocabulary`` follows; those of the tokenizer or more.
        max_length: how many tokens of a text are kept, from its beginning; 1 or larger.
        image_size: height and width in pixels, 1 or larger.
        test_fraction: in (0, 1).
        seed: of the draw of the test set; it does not follow the run's seed.
        max_memory_gb: as in ``LazyImages``.
        download: whether a named data set may be fetched; otherwise only the cache of ``datasets`` is read.
    """

    root: str | Path
    folder: str = "dataset"
    name: str | None = None
    subset: str | None = None
    input: str = "image"
    target: str = "label"
    attribute: str | None = None
    columns: Sequence[str] = ()
    tokenizer: str | None = None
    vocabulary: int | None = None
    max_length: int = 128
    image_size: int = 64
    test_fraction: float = 0.2
    seed: int = 0
    max_memory_gb: float = 8.0
    download: bool = False

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `dataset.image_size` to be 1 or larger, but got {self.image_size}.")
        check_within("dataset.test_fraction", self.test_fraction, "(0, 1)")
        check_whole("dataset.max_length", self.max_length)
        if self.vocabulary is not None:
            check_whole("dataset.vocabulary", self.vocabulary)
        self.path = located_inside(self.root, self.folder, "folder")
        self.tokenizer_path = None if self.tokenizer is None else located_inside(self.root, self.tokenizer, "tokenizer")

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write two splits of vectors, or of texts where there is a tokenizer; see ``DatasetSource.generate``."""
        if self.name is not None:
            return
        datasets = required("datasets", extra="hf", wanted_by="dataset=hf")
        classes, values = (2, 2) if demand is None else demand.shape
        per_group = 20 + int(20 if demand is None else demand.max())
        groups = np.repeat(np.arange(classes * values), per_group)
        y, a = np.divmod(groups, values)
        draw = rng.stream(0, "generated-hf")
        if self.tokenizer_path is None:
            inputs = (draw.normal(size=(len(groups), 8)) + groups[:, None]).tolist()
        else:
            inputs = write_texts(self.tokenizer_path, groups, draw)
        rows = {
            self.input: inputs,
            self.target: [f"class {label}" for label in y],
            **({self.attribute: [f"value {value}" for value in a]} if self.attribute else {}),
            **{column: (np.arange(len(groups)) % 2).tolist() for column in self.columns},
        }
        split = datasets.Dataset.from_dict(rows)
        datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(self.path))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the labels, and the inputs where they are no images; see ``DatasetSource.load``."""
        rows, texts, named = self._rows()
        labels = read_labels(
            texts,
            target=self.target,
            attribute=self.attribute,
            split=_SPLIT if _SPLIT in texts else None,
            test_fraction=self.test_fraction,
            seed=self.seed,
            source=self._source,
            where=lambda row: f"row {row + 1} of {self._source}",
            names=named,
        )
        inputs, statistics = self._inputs(rows)
        return Dataset(
            *(inputs, labels.y, labels.a, labels.train, labels.test, labels.val, labels.class_names, labels.attribute_names),
            mean=statistics[0],
            std=statistics[1],
            columns=labels.columns,
        )

    def labelled(self) -> tuple[InputStore, dict[str, list[str]]]:
        """Return the inputs, and what is said of each; raises as ``load``."""
        rows, texts, _ = self._rows()
        return self._inputs(rows)[0], texts

    def _rows(self) -> tuple[Any, dict[str, list[str]], dict[str, list[str]]]:
        """Return all rows, labels as texts with the split that each is of, and all values of those columns that know them."""
        datasets = required("datasets", extra="hf", wanted_by="dataset=hf")
        rows, splits = self._joined(datasets, self._read(datasets))
        wanted = [self.target, *([self.attribute] if self.attribute else []), *self.columns]
        if unknown := [name for name in (self.input, *wanted) if name not in rows.column_names]:
            raise ConfigError(
                f"Expected `dataset.input`, `target`, `attribute` and `columns` to name columns of {self._source}, but "
                f"{unknown[0]!r} is none: choose among {', '.join(map(visible, rows.column_names))}."
            )
        if splits and _SPLIT in wanted:
            raise ConfigError(
                f"Expected {self._source} to say once who tests, but it has splits and `dataset` names a column {_SPLIT!r}: "
                "rename the column."
            )
        kinds = (datasets.Value, datasets.ClassLabel)
        if unfit := [name for name in wanted if not isinstance(rows.features[name], kinds)]:
            raise ConfigError(
                f"Expected the column {unfit[0]!r} of {self._source} to have words or whole numbers, but it has "
                f"{type(rows.features[unfit[0]]).__name__}: choose another column."
            )
        named = {name: rows.features[name].names for name in wanted if hasattr(rows.features[name], "names")}
        for name, declared in named.items():
            check_visible(name, dict.fromkeys(declared, 0), lambda _: f"the list of its names in {self._source}")
        texts = {name: _texts(rows[name], named.get(name)) for name in wanted}
        return rows, texts | ({_SPLIT: splits} if splits else {}), named

    @property
    def _source(self) -> str:
        return self.name or str(self.path)

    def _read(self, datasets: Any) -> Any:
        if self.name is not None:
            try:
                with contextlib.nullcontext() if self.download else _hub_out_of_reach(datasets):
                    return datasets.load_dataset(self.name, self.subset)
            except Exception as error:  # the library's, the Hub's, and those of every parser
                raise DatasetNotFoundError(
                    f"Expected the data set {self.name!r} in the cache of `datasets`, but it cannot be read "
                    f"({first_line(error)}): check the name and `dataset.subset`, or add dataset.download=true."
                ) from None
        if not self.path.is_dir():
            raise DatasetNotFoundError(
                f"Expected a data set of Hugging Face at {self.path}, but there is no such folder: write it with "
                "`save_to_disk`, give `dataset.root=DIR dataset.folder=NAME`, point FEDFACET_DATA at the folder that holds it, "
                "or give `dataset.name`."
            )
        try:
            return datasets.load_from_disk(str(self.path))
        except Exception as error:
            raise DatasetCorruptError(
                f"Expected {self.path} to be what `save_to_disk` wrote, but it cannot be read ({first_line(error)}): write it "
                "again."
            ) from None

    def _joined(self, datasets: Any, read: Any) -> tuple[Any, list[str]]:
        """Return all rows, and the split of each; no splits if the data set does not say which rows test."""
        if not isinstance(read, datasets.DatasetDict):
            return read, []
        parts = {name: part for name, part in read.items() if name.lower() in SPLITS} or dict(read)
        if others := ", ".join(shown(name) for name in read if name not in parts):
            log.warning("These splits of %s are neither train, validation nor test and do not count: %s.", self._source, others)
        rows = datasets.concatenate_datasets(list(parts.values()))
        tested = any(SPLITS.get(name.lower()) == 2 for name in parts)
        return rows, [name for name, part in parts.items() for _ in range(len(part))] if tested else []

    def _inputs(self, rows: Any) -> tuple[InputStore, tuple[Any, ...]]:
        datasets = required("datasets", extra="hf", wanted_by="dataset=hf")
        kind = rows.features[self.input]
        if rows.data.column(self.input).null_count and None in (values := rows.with_format("arrow")[self.input][:].to_pylist()):
            raise DatasetCorruptError(
                f"Expected an input in every row of the column {self.input!r} of {self._source}, but row "
                f"{values.index(None) + 1} has none: "
                "fill it in, or leave the row out."
            )
        text = isinstance(kind, datasets.Value) and kind.dtype in ("string", "large_string")
        if self.tokenizer_path is not None:
            if not text:
                raise ConfigError(
                    f"The column {self.input!r} of {self._source} has {kind}, not texts: choose another `dataset.input`, or "
                    "leave `dataset.tokenizer` out."
                )
            tokens = tokens_of(
                rows[self.input],
                self.tokenizer_path,
                max_length=self.max_length,
                vocabulary=self.vocabulary,
                source=self._source,
            )
            return InMemoryInputs(tokens), (None, None)
        if isinstance(kind, datasets.Value):
            remedy = "give `dataset.tokenizer`" if text else "choose another `dataset.input`"
            raise ConfigError(
                f"The column {self.input!r} of {self._source} has a {kind.dtype} a sample, not images or numbers in rows of "
                f"one length: {remedy}."
            )
        if isinstance(kind, datasets.Image):
            images = _Images(rows.select_columns(self.input), self.input, self.image_size, self.max_memory_gb)
            return images, (IMAGENET_MEAN, IMAGENET_STD)
        try:
            return InMemoryInputs(inputs_of(np.array(rows.with_format("numpy")[self.input][:]))), (None, None)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"Expected the column {self.input!r} of {self._source} to have images, or numbers in rows of one length, but "
                f"it has {kind} ({first_line(error)}): turn it into numbers first, or choose another "
                "`dataset.input`."
            ) from None


class _Images(LazyImages):
    """Images of a column, decoded when they are asked for; not by ``datasets``, which opens formats that start programs."""

    def __init__(self, rows: Any, column: str, image_size: int, max_memory_gb: float) -> None:
        super().__init__(len(rows), image_size, max_memory_gb=max_memory_gb)
        feature = copy.copy(rows.features[column])
        feature.decode = False
        self.rows = rows.cast_column(column, feature)
        self.column, self.mode = column, feature.mode

    def make(self, index: int) -> NDArray[np.uint8]:
        """Decode one image; ``DatasetCorruptError`` if it is none."""
        try:
            held = self.rows[index][self.column]
            source = held["path"] if held["bytes"] is None else io.BytesIO(held["bytes"])
            with Image.open(source, formats=FORMATS) as file:
                turned = ImageOps.exif_transpose(file)
                turned = turned.convert(self.mode) if self.mode else turned
                image = in_rgb(turned, f"row {index} of the column {self.column!r}")
        except DatasetCorruptError:
            raise
        except Exception as error:
            raise DatasetCorruptError(
                f"Expected an image in row {index} of the column {self.column!r}, but it cannot be read ({first_line(error)}): "
                "write the data set again."
            ) from None
        size = (self.image_size, self.image_size)
        return np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BILINEAR))


@contextlib.contextmanager
def _hub_out_of_reach(datasets: Any) -> Iterator[None]:
    """Have ``datasets`` read its cache at once; its ``local_files_only`` asks the Hub first, half a minute with no network."""
    from huggingface_hub import constants

    modules: list[Any] = [datasets.config, constants]
    kept = [(module, module.HF_HUB_OFFLINE) for module in modules]
    try:
        for module, _ in kept:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, offline in kept:
            module.HF_HUB_OFFLINE = offline


def _texts(values: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """Return a column's entries as text: class labels by name, and what is missing, as label -1 is, as an empty text."""
    if names is not None:
        return ["" if value is None or value < 0 else names[value] for value in values]
    return ["" if value is None else str(value) for value in values]
