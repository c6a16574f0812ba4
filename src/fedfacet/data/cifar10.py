"""CIFAR-10."""

import pickle
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar import BYTES, CifarFiles
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out

FOLDER = "cifar-10-batches-py"
NUM_CLASSES = 10
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(eq=False, kw_only=True)
class CIFAR10(DatasetSource):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = class, no attribute.

    ``val_fraction`` of every class of the training images validates. Images are shifted by up to four pixels and mirrored when
    they are trained on, and only then. Files with fewer images than the official ones are read too.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; augmentation as in the thesis, section
    4.5.1. Mean and standard deviation are those of the 50,000 training images.

    Args:
        root: folder that holds ``cifar-10-batches-py`` in torchvision's layout.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive (170 MB) into ``root`` with torchvision where the folder is missing.
    """

    root: str
    val_fraction: float = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        check_within("dataset.val_fraction", self.val_fraction, "(0, 1)")
        self.folder = located(self.root) / FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in CIFAR-10's layout; see ``DatasetSource.generate``."""
        for part in (*TRAIN, "test_batch"):
            labels = np.arange(NUM_CLASSES * max(2, round(2 / self.val_fraction / len(TRAIN)))) % NUM_CLASSES
            content = {"data": noise(f"cifar10-{part}", labels, (BYTES,)), "labels": labels.tolist()}
            write_whole(self.folder / part, pickle.dumps(content))
        names = [f"class_{number}" for number in range(NUM_CLASSES)]
        write_whole(self.folder / "batches.meta", pickle.dumps({"label_names": names}))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        if self.download and not self.folder.is_dir():
            from torchvision.datasets import CIFAR10 as Official

            Official(str(self.folder.parent), download=True)
        files = CifarFiles("CIFAR-10", self.folder, self._how_to_get)
        names = files.read("batches.meta", {"label_names": NUM_CLASSES})["label_names"]
        contents = {part: files.read(part, {"data": None, "labels": None}) for part in (*TRAIN, "test_batch")}
        pixels = np.concatenate([files.images(part, content, {"labels": NUM_CLASSES}) for part, content in contents.items()])
        y = np.concatenate([np.asarray(content["labels"], dtype=np.int64) for content in contents.values()])
        nobody = np.zeros_like(y)
        given, test = np.split(np.arange(len(y)), [len(y) - len(contents["test_batch"]["labels"])])
        train, val = hold_out(y[given], nobody[given], self.val_fraction, self.seed, "cifar10-validation")
        return Dataset(
            *(InMemoryInputs(torch.from_numpy(pixels)), y, nobody, train, test, val),
            class_names=tuple(map(str, names)),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )

    def _how_to_get(self) -> str:
        if (self.folder.parent / "classes.csv").is_file():
            return (
                f"{self.folder.parent} has contact sheets, so write torchvision's layout into a folder DIR with `python tests/"
                f"data/cifar_sheets.py {self.folder.parent} DIR`, and give dataset.root=DIR"
            )
        return (
            "fetch it (170 MB) with dataset.download=true, name the folder that holds cifar-10-batches-py with "
            "dataset.root=DIR, point FEDFACET_DATA at a folder that holds cifar10/cifar-10-batches-py, or use "
            "`experiment=digits_gsc` instead, which needs no download"
        )
