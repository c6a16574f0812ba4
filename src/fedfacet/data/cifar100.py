"""CIFAR-100."""

import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

FOLDER = "cifar-100-python"
NUM_CLASSES = 100
_BYTES = 3 * 32 * 32


@dataclass(eq=False, kw_only=True)
class CIFAR100(DatasetSource):
    """CIFAR-100: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels, y = fine class, no attribute.

    ``val_fraction`` of every class of the training images validates: 5,000, 50 of every class, which leaves 45,000 for clients.
    Images are shifted by up to four pixels and mirrored when they are trained on, and only then. The 20 superclasses
    are the label column ``coarse``.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; split, augmentation and the statistics
    below as in De Cesare et al., Federated Learning Beyond Uniform Participation, section 2, and its released code.

    Deviation: the split is stratified, and validation is not augmented; the released code draws it at random and augments it.

    Args:
        root: folder that holds ``cifar-100-python`` in torchvision's layout.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch the archive (169 MB) into ``root`` with torchvision where the folder is missing.
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
        """Write noise in CIFAR-100's layout; see ``DatasetSource.generate``."""
        for part, per_class in (("train", max(10, round(2 / self.val_fraction))), ("test", 2)):
            labels = np.arange(NUM_CLASSES * per_class) % NUM_CLASSES
            pixels = noise(f"cifar100-{part}", labels, (_BYTES,))
            content = {"data": pixels, "fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
            write_whole(self.folder / part, pickle.dumps(content))
        fine, coarse = ([f"{kind}_{number:02d}" for number in range(count)] for kind, count in (("fine", 100), ("coarse", 20)))
        write_whole(self.folder / "meta", pickle.dumps({"fine_label_names": fine, "coarse_label_names": coarse}))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read and split the images; see ``DatasetSource.load``."""
        if self.download and not self.folder.is_dir():
            from torchvision.datasets import CIFAR100 as Official

            Official(str(self.folder.parent), download=True)
        names = self._read("meta", {"fine_label_names": NUM_CLASSES, "coarse_label_names": 20})
        parts = [self._read(part, {"data": None, "fine_labels": None, "coarse_labels": None}) for part in ("train", "test")]
        for part, content in zip(("train", "test"), parts, strict=True):
            with self._reading(self.folder / part):
                self._check(part, content)
        y, coarse = (
            np.concatenate([np.asarray(part[key], dtype=np.int64) for part in parts])
            for key in ("fine_labels", "coarse_labels")
        )
        nobody = np.zeros_like(y)
        given, test = np.split(np.arange(len(y)), [len(parts[0]["data"])])
        train, val = hold_out(y[given], nobody[given], self.val_fraction, self.seed, "cifar100-validation")
        pixels = np.concatenate([part["data"].reshape(-1, 3, 32, 32) for part in parts])
        return Dataset(
            *(InMemoryInputs(torch.from_numpy(pixels)), y, nobody, train, test, val),
            class_names=tuple(map(str, names["fine_label_names"])),
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            columns={"coarse": coarse},
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )

    def _read(self, name: str, keys: dict[str, int | None]) -> dict[str, Any]:
        """Return a pickled mapping that has ``keys``, each of the given length where one is given."""
        file = self.folder / name
        if not file.is_file():
            raise DatasetNotFoundError(
                f"Expected CIFAR-100's file {name!r} in {self.folder}, but it is not there: {self._how_to_get()}."
            )
        with self._reading(file), file.open("rb") as opened:
            content = _NumpyUnpickler(opened, encoding="latin1").load()
            lengths = {key: len(content[key]) for key in keys}
        if wrong := [key for key, length in keys.items() if length is not None and lengths[key] != length]:
            raise DatasetCorruptError(
                f"Expected {keys[wrong[0]]} entries under {wrong[0]!r} of {file}, but got {lengths[wrong[0]]}: delete the "
                "folder and fetch it again."
            )
        return dict(content)

    def _reading(self, file: Path) -> contextlib.AbstractContextManager[None]:
        return reading(file, "a whole file of CIFAR-100 in its Python version", "delete the folder and fetch it again")

    def _how_to_get(self) -> str:
        if (self.folder.parent / "classes.csv").is_file():
            return (
                f"{self.folder.parent} has contact sheets, so write torchvision's layout into a folder DIR with `python tests/"
                f"data/cifar100_sheets.py {self.folder.parent} DIR` (see docs/participation.md), and give dataset.root=DIR"
            )
        return (
            "fetch it (169 MB) with dataset.download=true, name the folder that holds cifar-100-python with dataset.root=DIR, "
            "point FEDFACET_DATA at a folder that holds cifar100/cifar-100-python, or use `experiment=digits_gsc` instead, "
            "which needs no download"
        )

    def _check(self, part: str, content: dict[str, Any]) -> None:
        data, labels = content["data"], np.asarray(content["fine_labels"])
        shape = getattr(data, "shape", None)
        whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and shape == (len(labels), _BYTES)
        coarse = np.asarray(content["coarse_labels"])
        known = labels.shape == coarse.shape == (len(labels),) and set(coarse.tolist()) <= set(range(20))
        if not whole or not known or set(labels.tolist()) != set(range(NUM_CLASSES)):
            raise DatasetCorruptError(
                f"Expected {self.folder / part} to hold images of {_BYTES} bytes and as many labels of {NUM_CLASSES} "
                f"classes, but got images of shape {shape} and {len(labels)} labels: delete the folder and fetch it again."
            )


class _NumpyUnpickler(pickle.Unpickler):
    """Reads arrays and plain data, and runs nothing else that a file may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric"):
            if name == "dtype":
                return _dtype
            if name in ("ndarray", "_reconstruct", "_frombuffer"):
                return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _dtype(code: str, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """Return a dtype; the official files say 0 and 1 where numpy now wants False and True."""
    return np.dtype(code, bool(align), bool(copy))
