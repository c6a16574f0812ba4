"""Data sets in the format of Hugging Face's ``datasets``, from disk or from its cache."""

import contextlib
import copy
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fedfacet import rng
from fedfacet.arguments import Whole
from fedfacet.data.arrays import inputs_of
from fedfacet.data.dataset import Dataset, InMemoryInputs, InputStore
from fedfacet.data.entries import check_visible, shown, visible
from fedfacet.data.images import FORMATS, IMAGENET_MEAN, IMAGENET_STD, LazyImages, in_rgb
from fedfacet.data.labels import SPLITS, LabelledData
from fedfacet.data.source import located_inside
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, first_line
from fedfacet.optional import required

log = logging.getLogger(__name__)

_SPLIT = "split"
PADDING = -1
"""What fills a row after the last token; no tokenizer has it, so that no model takes it for a token."""


@dataclass(eq=False, kw_only=True)
class HuggingFace(LabelledData):
    """Images, texts or rows of numbers that ``datasets.save_to_disk`` wrote, or that ``datasets.load_dataset`` knows.

    The splits called ``train``, ``validation`` and ``test`` are what their names say; without a ``test`` all samples of these
    splits are put together, and ``test_fraction`` of every (class, attribute) group tests. Images become RGB, are resized and
    normalised by ImageNet's statistics; rows of numbers go into a model as they are. Texts become rows of tokens, padded by -1
    at their end; ``model=text_classifier`` and ``model=causal_lm`` read those.

    Needs the package ``datasets`` (``pip install fedfacet[hf]``), which runs no
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
        max_memory_gb: as in ``LazyImages``.
        download: whether a named data set may be fetched; otherwise only the cache of ``datasets`` is read.
    """

    folder: str = "dataset"
    name: str | None = None
    subset: str | None = None
    input: str = "image"
    target: str = "label"
    columns: Sequence[str] = ()
    tokenizer: str | None = None
    vocabulary: Annotated[int | None, Whole()] = None
    max_length: Annotated[int, Whole()] = 128
    image_size: Annotated[int, Whole(words="1 or larger")] = 64
    max_memory_gb: float = 8.0
    download: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
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
            inputs = _write_texts(self.tokenizer_path, groups, draw)
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
        split = _SPLIT if _SPLIT in texts else None
        inputs = self._inputs(rows)
        statistics = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} if isinstance(inputs, LazyImages) else {}
        labels = self.read_labels(
            texts, source=self._source, where=lambda row: f"row {row + 1} of {self._source}", split=split, names=named
        )
        return labels.dataset(inputs, **statistics)

    def labelled(self) -> tuple[InputStore, dict[str, list[str]]]:
        """Return the inputs, and what is said of each; raises as ``load``."""
        rows, texts, _ = self._rows()
        return self._inputs(rows), texts

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

    def _inputs(self, rows: Any) -> InputStore:
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
            tokens = _tokens_of(
                rows[self.input],
                self.tokenizer_path,
                max_length=self.max_length,
                vocabulary=self.vocabulary,
                source=self._source,
            )
            return InMemoryInputs(tokens)
        if isinstance(kind, datasets.Value):
            remedy = "give `dataset.tokenizer`" if text else "choose another `dataset.input`"
            raise ConfigError(
                f"The column {self.input!r} of {self._source} has a {kind.dtype} a sample, not images or numbers in rows of "
                f"one length: {remedy}."
            )
        if isinstance(kind, datasets.Image):
            return _Images(rows.select_columns(self.input), self.input, self.image_size, self.max_memory_gb)
        try:
            return InMemoryInputs(inputs_of(np.array(rows.with_format("numpy")[self.input][:])))
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


def _tokens_of(texts: Sequence[str], tokenizer: Path, *, max_length: int, vocabulary: int | None, source: str) -> Tensor:
    """Return the tokens of texts, shape (N, max_length), int64; each row ends with ``PADDING``, -1, where a text is shorter.

    A longer text is cut at its end. Special tokens are added as the tokenizer says; its own padding and truncation are not
    used.

    Args:
        texts: N of them.
        tokenizer: a ``tokenizer.json`` as the package ``tokenizers`` writes it, or a folder with one.
        max_length: T, 1 or larger.
        vocabulary: how many tokens a model is made for; the tokenizer may have fewer.
        source: of the texts, for messages.

    Raises:
        ConfigError: if ``tokenizers`` is not installed, or ``vocabulary`` is missing or too small.
        DatasetNotFoundError: if there is no such file.
        DatasetCorruptError: if the file cannot be read, or a text has no tokens.
    """
    tokenizers = required("tokenizers", extra="text", wanted_by="dataset.tokenizer")
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not file.is_file():
        raise DatasetNotFoundError(
            f"There is no tokenizer at {file}: give `dataset.tokenizer=NAME`, a tokenizer.json inside `dataset.root` or a "
            "folder with one."
        )
    try:
        reader = tokenizers.Tokenizer.from_file(str(file))
        reader.no_padding()
        reader.enable_truncation(max_length)
    except Exception as error:  # the library raises no other class
        raise DatasetCorruptError(
            f"The tokenizer {file} cannot be read with `dataset.max_length={max_length}` ({first_line(error)}): write it again "
            "with the package tokenizers, or choose a larger `dataset.max_length`."
        ) from None
    size = 1 + max(reader.get_vocab(with_added_tokens=True).values(), default=0)  # numbers may have gaps
    if vocabulary is None or vocabulary < size:
        raise ConfigError(
            f"`dataset.vocabulary` is {vocabulary}, but the tokenizer {file.name} has {size} tokens: give "
            f"`dataset.vocabulary={size}`."
        )
    rows = torch.full((len(texts), max_length), PADDING)
    for number, read in enumerate(reader.encode_batch_fast(list(texts))):
        if not read.ids:
            raise DatasetCorruptError(f"Sample {number} of {source} has no tokens: leave samples without a text out.")
        rows[number, : len(read.ids)] = torch.tensor(read.ids)
    return rows


def _write_texts(tokenizer: Path, groups: NDArray[np.int64], draw: np.random.Generator) -> list[str]:
    """Write a tokenizer of whole words, and return a text for each sample, in which a word of its group is frequent."""
    tokenizers = required("tokenizers", extra="text", wanted_by="dataset.tokenizer")
    words = [f"word{number}" for number in range(1 + int(groups.max(initial=0)))]
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?")
    written = tokenizers.Tokenizer(model)
    written.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.parent.mkdir(parents=True, exist_ok=True)
    written.save(str(tokenizer))
    return [" ".join([words[group], *draw.choice(words, size=draw.integers(1, 8))]) for group in groups]
