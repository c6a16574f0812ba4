"""CIFAR-10 and CIFAR-100, from the files of their binary version, in which each image follows its labels.

A record is one byte per label column and 3,072 bytes of image: 32 x 32 red values, then green, then blue. The authors also
publish a Python version, which is pickled and therefore not read: a pickle can make a program do anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import Choice, Within
from fedfacet.data.archives import obtain
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise, write_lines, write_whole
from fedfacet.data.labels import hold_out
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetNotFoundError

_BYTES = 3 * 32 * 32
_MOST_RECORDS = 200_000
_MOST_NAME_BYTES = 100_000
_REMEDY = "delete the folder and fetch it again with dataset.download=true"


@dataclass(eq=False, kw_only=True)
class _Cifar(DatasetSource):
    """What both data sets share.

    Args:
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive and unpack it in ``root`` if the folder is missing.
        url: of the archive.
    """

    NAME: ClassVar[str]
    FOLDER: ClassVar[str]
    PICKLED: ClassVar[str]
    """The folder of the Python version."""

    MEGABYTES: ClassVar[int]
    URL: ClassVar[str]
    DIGEST: ClassVar[str]
    """Of the archive, as its authors publish it."""

    TRAIN: ClassVar[tuple[str, ...]]
    TEST: ClassVar[str]
    LABELS: ClassVar[Mapping[str, tuple[str, int]]]
    """Of each column of labels: the file with the names of classes, and how many there are. The split is by the last one."""

    MEAN: ClassVar[tuple[float, ...]]
    STD: ClassVar[tuple[float, ...]]

    root: str
    val_fraction: Annotated[float, Within("(0, 1)")] = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False
    url: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root) / self.FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the official layout; see ``DatasetSource.generate``."""
        *_, classes = (number for _, number in self.LABELS.values())
        parts = len(self.TRAIN)
        for part in (*self.TRAIN, self.TEST):
            labels = (
                np.arange(classes * (2 if part == "test.bin" else max(10 // parts, round(2 / self.val_fraction / parts))))
                % classes
            )
            columns = [labels * number // classes for _, number in self.LABELS.values()]
            pixels = noise(f"{self._key}-{part.removesuffix('.bin')}", labels, (_BYTES,))
            write_whole(self.folder / part, np.column_stack([*columns, pixels]).astype(np.uint8).tobytes())
        for kind, (file, number) in self.LABELS.items():  # the official files end with an empty line
            write_lines(self.folder / file, [*(f"{kind}_{label:0{len(str(number - 1))}d}" for label in range(number)), ""])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        obtain(
            self.folder,
            url=self.url,
            archive=self.folder.parent / self.URL.rpartition("/")[2],
            allowed=self.download,
            missing=f"Expected {self.NAME} in {self.folder}, but it is not there: {self._how_to_get()}.",
            published=self.DIGEST if self.url == self.URL else None,
        )
        names = {kind: self._names(file, number) for kind, (file, number) in self.LABELS.items()}
        parts = [self._records(part) for part in (*self.TRAIN, self.TEST)]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        columns = {kind: labels[:, position].copy() for position, kind in enumerate(names)}
        end = len(labels) - len(parts[-1][1])
        train, val = hold_out(labels[:end, -1], None, self.val_fraction, self.seed, f"{self._key}-validation")
        return Dataset(
            InMemoryInputs(torch.from_numpy(pixels)),
            columns.pop(self._trained_on),
            np.zeros(len(labels), dtype=np.int64),
            train,
            np.arange(end, len(labels)),
            val,
            names[self._trained_on],
            mean=self.MEAN,
            std=self.STD,
            columns=columns,
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )

    @property
    def _key(self) -> str:
        return self.NAME.lower().replace("-", "")

    @property
    def _trained_on(self) -> str:
        """The column of labels that is y."""
        return next(iter(self.LABELS))

    def _names(self, part: str, number: int) -> tuple[str, ...]:
        """Return the names of classes, one a line; refuse another number of them."""
        content = self._bytes(part, _MOST_NAME_BYTES)
        with reading(self.folder / part, f"a list of {number} names", _REMEDY):
            names = tuple(content.decode("ascii").split())
            if len(set(names)) != number:
                raise ValueError(f"it holds {len(set(names))} different names")
        return names

    def _records(self, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the images of a file, shape (N, 3, 32, 32), and their labels, shape (N, columns).

        Refuse a file that ends within a record, that has an unknown label, or that lacks images of some class.
        """
        size = len(self.LABELS) + _BYTES
        content = self._bytes(part, _MOST_RECORDS * size)
        with reading(self.folder / part, f"a whole file of {self.NAME} in its binary version", _REMEDY):
            if not content or len(content) % size:
                raise ValueError(f"its {len(content)} bytes are no whole number of records of {size} bytes")
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
            for column, (_, number) in enumerate(self.LABELS.values()):
                found = np.unique(rows[:, column])
                if found.tolist() != list(range(number)):
                    raise ValueError(f"its labels are of {len(found)} classes up to {found.max()}, and not of {number}")
        return rows[:, -_BYTES:].reshape(-1, 3, 32, 32), rows[:, :-_BYTES].astype(np.int64)

    def _bytes(self, part: str, most: int) -> bytes:
        file = self.folder / part
        if not file.exists():
            raise DatasetNotFoundError(
                f"Expected {self.NAME}'s file {part!r} in {self.folder}, but it is not there: {_REMEDY}."
            )
        with reading(file, f"a file of {self.NAME} in its binary version", _REMEDY):
            if (size := file.stat().st_size) > most:
                raise ValueError(f"it has {size:,} bytes, which is more than {most:,}")
            return file.read_bytes()

    def _how_to_get(self) -> str:
        root = self.folder.parent
        if (root / "classes.csv").is_file():
            return (
                f"{root} has contact sheets, so write the binary version into a folder DIR with `python tests/data/"
                f"cifar_sheets.py {root} DIR` (see docs/participation.md), and give dataset.root=DIR"
            )
        pickles = f"{self.PICKLED} is there, but it is pickled, and a pickle may run code, so it is not read; "
        return (
            f"{pickles if (root / self.PICKLED).is_dir() else ''}fetch the binary version ({self.MEGABYTES} MB) with "
            f"dataset.download=true, name the folder that holds {self.folder.name} with dataset.root=DIR, point FEDFACET_DATA "
            f"at a folder that holds {root.name}/{self.folder.name}, or use `experiment=digits_gsc` instead, which needs no "
            "download"
        )


@dataclass(eq=False, kw_only=True)
class CIFAR10(_Cifar):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = class, no attribute.

    ``val_fraction`` of every class of the training images validates. Images are shifted by up to four pixels and mirrored when
    they are trained on, and only then. Files with fewer images than the official ones are read too.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; augmentation as in the thesis, section
    4.7.1. Mean and standard deviation are those of the 50,000 training images.

    The other arguments are those of both data sets.

    Args:
        root: folder that holds ``cifar-10-batches-bin``, the binary version; the Python version is pickled and not read.
    """

    NAME, FOLDER, PICKLED = "CIFAR-10", "cifar-10-batches-bin", "cifar-10-batches-py"
    URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    MEGABYTES, DIGEST = 170, "md5:c32a1d4ab5d03f1284b67883e8d87530"
    TRAIN, TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"
    LABELS: ClassVar = {"class": ("batches.meta.txt", 10)}
    MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

    url: str = URL


@dataclass(eq=False, kw_only=True)
class CIFAR100(_Cifar):
    """CIFAR-100: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = fine class or superclass, no attribute.

    ``val_fraction`` of every class of the training images validates: 5,000, 50 of every class, which leaves 45,000 for clients.
    Images are shifted by up to four pixels and mirrored when they are trained on, and only then. The label that is not y is a
    column: ``coarse`` has the 20 superclasses, ``fine`` the 100 classes.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; split, augmentation and the statistics
    below as in De Cesare et al., Federated Learning Beyond Uniform Participation, section 2, and its released code.

    Deviation: the split is stratified, and validation is not augmented; the released code draws it at random and augments it.

    The other arguments are those of both data sets.

    Args:
        root: folder that holds ``cifar-100-binary``, the binary version; the Python version is pickled and not read.
        labels: what models are trained on, ``"fine"`` (100 classes) or ``"coarse"`` (20 superclasses of five of these each), on
            the same split.
    """

    NAME, FOLDER, PICKLED = "CIFAR-100", "cifar-100-binary", "cifar-100-python"
    URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    MEGABYTES, DIGEST = 169, "md5:03b5dce01913d631647c71ecec9e9cb8"
    TRAIN, TEST = ("train.bin",), "test.bin"
    LABELS: ClassVar = {"coarse": ("coarse_label_names.txt", 20), "fine": ("fine_label_names.txt", 100)}
    MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)

    labels: Annotated[str, Choice("fine", "coarse")] = "fine"
    url: str = URL

    @property
    def _trained_on(self) -> str:
        return self.labels
