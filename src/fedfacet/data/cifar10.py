"""CIFAR-10."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar import BYTES, CifarFiles, write_names, write_records
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out

FOLDER = "cifar-10-batches-bin"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NAMES = "batches.meta.txt"
NUM_CLASSES = 10
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"


@dataclass(eq=False, kw_only=True)
class CIFAR10(DatasetSource):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = class, no attribute.

    ``val_fraction`` of every class of the training images validates. Images are shifted by up to four pixels and mirrored when
    they are trained on, and only then. Files with fewer images than the official ones are read too.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; augmentation as in the thesis, section
    4.5.1. Mean and standard deviation are those of the 50,000 training images.

    Args:
        root: folder that holds ``cifar-10-batches-bin``, the binary version; the Python version is pickled and not read.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive (170 MB) and unpack it in ``root`` if the folder is missing.
        url: of the archive.
    """

    root: str
    val_fraction: float = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        check_within("dataset.val_fraction", self.val_fraction, "(0, 1)")
        self.folder = located(self.root) / FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in CIFAR-10's layout; see ``DatasetSource.generate``."""
        for part in (*TRAIN, TEST):
            labels = np.arange(NUM_CLASSES * max(2, round(2 / self.val_fraction / len(TRAIN)))) % NUM_CLASSES
            write_records(self.folder / part, noise(f"cifar10-{part.removesuffix('.bin')}", labels, (BYTES,)), labels)
        write_names(self.folder / NAMES, [f"class_{number}" for number in range(NUM_CLASSES)])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        files = CifarFiles("CIFAR-10", self.folder, "cifar-10-batches-py", 170, "md5:c32a1d4ab5d03f1284b67883e8d87530")
        files.obtain(self.url, URL, download=self.download)
        names = files.names(NAMES, NUM_CLASSES)
        pixels, labels = zip(*(files.records(part, [NUM_CLASSES]) for part in (*TRAIN, TEST)), strict=True)
        y = np.concatenate(labels)[:, 0]
        nobody = np.zeros_like(y)
        given, test = np.split(np.arange(len(y)), [len(y) - len(labels[-1])])
        train, val = hold_out(y[given], nobody[given], self.val_fraction, self.seed, "cifar10-validation")
        return Dataset(
            *(InMemoryInputs(torch.from_numpy(np.concatenate(pixels))), y, nobody, train, test, val),
            class_names=names,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )
