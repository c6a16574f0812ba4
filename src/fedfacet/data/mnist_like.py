"""FashionMNIST and EMNIST, in the layout of MNIST's files."""

import string
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import Choice
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise
from fedfacet.data.mnist import IMAGES, LABELS, PARTS, IdxFiles
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError

GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
MERGED = "".join(character for character in CHARACTERS if character not in "cijklmopsuvwxyz")
"""Lower-case characters that look like their capitals count as these."""

SPLITS = {
    "byclass": CHARACTERS,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": string.ascii_lowercase,
    "digits": string.digits,
    "mnist": string.digits,
}


def _written(files: IdxFiles, parts: tuple[str, str], classes: int, first: int) -> None:
    """Write noise of each class, 20 training and 4 test images."""
    for part, per_class in zip(parts, (20, 4), strict=True):
        labels = np.arange(per_class * classes) % classes
        files.write(f"{part}-{IMAGES}", noise(part, labels, (28, 28)))
        files.write(f"{part}-{LABELS}", (labels + first).astype(np.uint8))


def _dataset(
    files: IdxFiles, parts: tuple[str, str], names: tuple[str, ...], *, moments: tuple[float, float], first: int, turned: bool
) -> Dataset:
    """Return the data set of some files; their labels begin at ``first``, and images that are ``turned`` are transposed."""
    images, labels = [], []
    for part in parts:
        x, y = files.read(f"{part}-{IMAGES}", (28, 28)), files.read(f"{part}-{LABELS}", ()).astype(np.int64) - first
        if len(x) != len(y) or y.min() < 0 or y.max() >= len(names):
            raise DatasetCorruptError(
                f"{files.name}'s {part} files in {files.folder} hold {len(x)} images and {len(y)} labels from "
                f"{y.min() + first} to {y.max() + first}, not {first} to {len(names) - 1 + first}: fetch them again."
            )
        images.append(x.transpose(0, 2, 1) if turned else x)
        labels.append(y)
    y = np.concatenate(labels)
    train, test = np.split(np.arange(len(y)), [len(labels[0])])
    pixels = torch.from_numpy(np.ascontiguousarray(np.concatenate(images)[:, None]))
    mean, std = ((moment,) for moment in moments)
    return Dataset(InMemoryInputs(pixels), y, np.zeros_like(y), train, test, None, names, mean=mean, std=std)


@dataclass(eq=False)
class FashionMNIST(DatasetSource):
    """Grey pictures of garments, 1 x 28 x 28 pixels, ten classes, 60,000 training and 10,000 test images, no attribute.

    Source: Xiao, Rasul and Vollgraf, arXiv:1708.07747, MIT licence. The thesis, table 5, lists it with clients by class
    (``partition=classes_per_client`` or ``dirichlet``). Mean 0.2860 and deviation 0.3530 are those of the training images.

    Args:
        root: folder that holds ``FashionMNIST/raw`` in torchvision's layout, files compressed or not.
    """

    root: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._files = IdxFiles(
            "FashionMNIST",
            located(self.root) / "FashionMNIST" / "raw",
            "fetch it with torchvision.datasets.FashionMNIST(ROOT, download=True) and give dataset.root=ROOT, or point "
            "FEDFACET_DATA at a folder that holds fashion_mnist/FashionMNIST/raw",
        )

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the real layout; see ``DatasetSource.generate``."""
        _written(self._files, PARTS, len(GARMENTS), 0)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read images and classes; see ``DatasetSource.load``."""
        return _dataset(self._files, PARTS, GARMENTS, moments=(0.2860, 0.3530), first=0, turned=False)


@dataclass(eq=False)
class EMNIST(DatasetSource):
    """Handwritten characters, digits and the alphabet, without writers, 1 x 28 x 28 pixels, light on dark, no attribute.

    Files hold each image transposed; here it stands upright. The split ``byclass`` has 62 classes, 697,932 training and 116,323
    test images; ``balanced`` has 47 classes, 112,800 and 18,800. ``dataset=femnist`` has the same characters by writer.

    Source: Cohen et al., arXiv:1702.05373. The thesis, table 5, lists it with clients by class
    (``partition=classes_per_client`` or ``dirichlet``). Mean 0.1736 and deviation 0.3317 are customary for all
    splits.

    Args:
        root: folder that holds ``EMNIST/raw`` in torchvision's layout, files compressed or not.
        split: ``"byclass"``, ``"bymerge"``, ``"balanced"``, ``"letters"``, ``"digits"`` or ``"mnist"``.
    """

    root: str
    _: KW_ONLY
    split: Annotated[str, Choice(*SPLITS)] = "byclass"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parts = (f"emnist-{self.split}-train", f"emnist-{self.split}-test")
        self._first = int(self.split == "letters")  # which are numbered from 1
        self._files = IdxFiles(
            "EMNIST",
            located(self.root) / "EMNIST" / "raw",
            f"fetch it with torchvision.datasets.EMNIST(ROOT, {self.split!r}, download=True) and give dataset.root=ROOT, or "
            "point FEDFACET_DATA at a folder that holds emnist/EMNIST/raw",
        )

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the real layout; see ``DatasetSource.generate``."""
        _written(self._files, self._parts, len(SPLITS[self.split]), self._first)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read images and classes; see ``DatasetSource.load``."""
        names = tuple(SPLITS[self.split])
        return _dataset(self._files, self._parts, names, moments=(0.1736, 0.3317), first=self._first, turned=True)
