"""CIFAR-100."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import check_choice, check_within
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar import BYTES, CifarFiles, write_names, write_records
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out

FOLDER = "cifar-100-binary"
URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
NUM_COARSE, NUM_CLASSES = 20, 100


@dataclass(eq=False, kw_only=True)
class CIFAR100(DatasetSource):
    """CIFAR-100: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = fine class or superclass, no attribute.

    ``val_fraction`` of every class of the training images validates: 5,000, 50 of every class, which leaves 45,000 for clients.
    Images are shifted by up to four pixels and mirrored when they are trained on, and only then. The label that is not y is a
    column: ``coarse`` has the 20 superclasses, ``fine`` the 100 classes.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; split, augmentation and the statistics
    below as in De Cesare et al., Federated Learning Beyond Uniform Participation, section 2, and its released code.

    Deviation: the split is stratified, and validation is not augmented; the released code draws it at random and augments it.

    Args:
        root: folder that holds ``cifar-100-binary``, the binary version; the Python version is pickled and not read.
        labels: what models are trained on, ``"fine"`` (100 classes) or ``"coarse"`` (20 superclasses of five of these each), on
            the same split.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive (169 MB) and unpack it in ``root`` if the folder is missing.
        url: of the archive.
    """

    root: str
    labels: str = "fine"
    val_fraction: float = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        check_choice("dataset.labels", self.labels, ("fine", "coarse"))
        check_within("dataset.val_fraction", self.val_fraction, "(0, 1)")
        self.folder = located(self.root) / FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in CIFAR-100's layout; see ``DatasetSource.generate``."""
        for part, per_class in (("train", max(10, round(2 / self.val_fraction))), ("test", 2)):
            labels = np.arange(NUM_CLASSES * per_class) % NUM_CLASSES
            pixels = noise(f"cifar100-{part}", labels, (BYTES,))
            write_records(self.folder / f"{part}.bin", pixels, labels // 5, labels)
        for kind, count in (("fine", NUM_CLASSES), ("coarse", NUM_COARSE)):
            write_names(self.folder / f"{kind}_label_names.txt", [f"{kind}_{number:02d}" for number in range(count)])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        files = CifarFiles("CIFAR-100", self.folder, "cifar-100-python", 169, "md5:03b5dce01913d631647c71ecec9e9cb8")
        files.obtain(self.url, URL, download=self.download)
        names = {
            kind: files.names(f"{kind}_label_names.txt", count)
            for kind, count in (("coarse", NUM_COARSE), ("fine", NUM_CLASSES))
        }
        parts = [files.records(part, [NUM_COARSE, NUM_CLASSES]) for part in ("train.bin", "test.bin")]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        columns = {kind: labels[:, position].copy() for position, kind in enumerate(names)}
        nobody = np.zeros(len(labels), dtype=np.int64)
        given, test = np.split(np.arange(len(nobody)), [len(parts[0][1])])
        train, val = hold_out(columns["fine"][given], nobody[given], self.val_fraction, self.seed, "cifar100-validation")
        return Dataset(
            *(InMemoryInputs(torch.from_numpy(pixels)), columns.pop(self.labels), nobody, train, test, val),
            class_names=names[self.labels],
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            columns=columns,
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )
