"""CIFAR-100."""

import pickle
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import check_choice, check_within
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar import BYTES, CifarFiles
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out

FOLDER = "cifar-100-python"
NUM_CLASSES = 100


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
        root: folder that holds ``cifar-100-python`` in torchvision's layout.
        labels: what models are trained on, ``"fine"`` (100 classes) or ``"coarse"`` (20 superclasses of five of these each), on
            the same split.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive (169 MB) into ``root`` with torchvision where the folder is missing.
    """

    root: str
    labels: str = "fine"
    val_fraction: float = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        check_choice("dataset.labels", self.labels, ("fine", "coarse"))
        check_within("dataset.val_fraction", self.val_fraction, "(0, 1)")
        self.folder = located(self.root) / FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in CIFAR-100's layout; see ``DatasetSource.generate``."""
        for part, per_class in (("train", max(10, round(2 / self.val_fraction))), ("test", 2)):
            labels = np.arange(NUM_CLASSES * per_class) % NUM_CLASSES
            pixels = noise(f"cifar100-{part}", labels, (BYTES,))
            content = {"data": pixels, "fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
            write_whole(self.folder / part, pickle.dumps(content))
        fine, coarse = ([f"{kind}_{number:02d}" for number in range(count)] for kind, count in (("fine", 100), ("coarse", 20)))
        write_whole(self.folder / "meta", pickle.dumps({"fine_label_names": fine, "coarse_label_names": coarse}))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        if self.download and not self.folder.is_dir():
            from torchvision.datasets import CIFAR100 as Official

            Official(str(self.folder.parent), download=True)
        files = CifarFiles("CIFAR-100", self.folder, self._how_to_get)
        names = files.read("meta", {"fine_label_names": NUM_CLASSES, "coarse_label_names": 20})
        parts = [files.read(part, {"data": None, "fine_labels": None, "coarse_labels": None}) for part in ("train", "test")]
        pixels = np.concatenate(
            [
                files.images(part, content, {"fine_labels": NUM_CLASSES, "coarse_labels": 20})
                for part, content in zip(("train", "test"), parts, strict=True)
            ]
        )
        columns = {
            kind: np.concatenate([np.asarray(part[f"{kind}_labels"], dtype=np.int64) for part in parts])
            for kind in ("fine", "coarse")
        }
        nobody = np.zeros_like(columns["fine"])
        given, test = np.split(np.arange(len(nobody)), [len(parts[0]["data"])])
        train, val = hold_out(columns["fine"][given], nobody[given], self.val_fraction, self.seed, "cifar100-validation")
        return Dataset(
            *(InMemoryInputs(torch.from_numpy(pixels)), columns.pop(self.labels), nobody, train, test, val),
            class_names=tuple(map(str, names[f"{self.labels}_label_names"])),
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            columns=columns,
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )

    def _how_to_get(self) -> str:
        if (self.folder.parent / "classes.csv").is_file():
            return (
                f"{self.folder.parent} has contact sheets, so write torchvision's layout into a folder DIR with `python tests/"
                f"data/cifar_sheets.py {self.folder.parent} DIR` (see docs/participation.md), and give dataset.root=DIR"
            )
        return (
            "fetch it (169 MB) with dataset.download=true, name the folder that holds cifar-100-python with dataset.root=DIR, "
            "point FEDFACET_DATA at a folder that holds cifar100/cifar-100-python, or use `experiment=digits_gsc` instead, "
            "which needs no download"
        )
