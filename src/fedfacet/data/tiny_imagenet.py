"""Tiny ImageNet: small photographs of 200 classes."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Within
from fedfacet.data.archives import obtain
from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import write_lines
from fedfacet.data.images import ImageSource
from fedfacet.data.labels import hold_out
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

URL = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
PUBLISHED = "md5:90528d7ca1a48142e341f4ef8d21d0de"
"""Stanford publishes none; it is the one that loaders hold the archive to, Avalanche's (ContinualAI) among them."""

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
CLASSES, NAMES, ANNOTATIONS = "wnids.txt", "words.txt", "val_annotations.txt"
_GENERATED_CLASSES = 20


@dataclass(eq=False)
class TinyImageNet(ImageSource):
    """Tiny ImageNet: 100,000 training and 10,000 test images of 3 x 64 x 64 pixels, y = one of 200 classes, no attribute.

    Nobody has published labels of the official test images, so that the official validation images are the test set here, as
    everywhere. ``val_fraction`` of every class of the training images validates: 10,000, 50 of every class, which leaves 90,000
    for clients. Classes are numbered in the order of ``wnids.txt`` and bear the first of the names that ``words.txt`` has for
    them. Images are shifted by up to four pixels and mirrored when they are trained on, and only then. Pixels are normalised by
    ImageNet's statistics.

    Source: Le and Yang, Tiny ImageNet Visual Recognition Challenge, course CS231N, Stanford, 2015. For research only, as
    ImageNet is, whose photographs these are.

    Args:
        root: folder that holds, or will hold, ``tiny-imagenet-200`` as the official archive unpacks.
        val_fraction: the part of every class that validates, in (0, 1).
        augment: whether training images are shifted and mirrored.
        seed: of the split; it does not follow the run's seed.
        download: fetch and unpack the archive (248 MB) where ``tiny-imagenet-200`` is missing.
        url: of the archive ``tiny-imagenet-200.zip``.
        max_memory_gb: as in ``LazyImages``; all images take 1.4 GB.
    """

    _: KW_ONLY
    image_size: int = 64
    val_fraction: Annotated[float, Within("(0, 1)")] = 0.1
    augment: bool = True
    seed: int = 0
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder /= FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the archive's layout, of 20 classes; see ``DatasetSource.generate``."""
        wnids = [f"n{number:08d}" for number in range(1, _GENERATED_CLASSES + 1)]
        for part, per_class in (("train", max(10, round(2 / self.val_fraction))), ("val", 2)):
            labels = np.arange(_GENERATED_CLASSES * per_class) % _GENERATED_CLASSES
            of_class = [wnids[label] for label in labels]
            if part == "train":
                rows = enumerate(of_class)
                files = [f"train/{wnid}/images/{wnid}_{number // _GENERATED_CLASSES}.JPEG" for number, wnid in rows]
            else:
                files = [f"val/images/val_{number}.JPEG" for number in range(len(labels))]
                end = self.image_size - 1
                boxes = [f"val_{number}.JPEG\t{wnid}\t0\t0\t{end}\t{end}" for number, wnid in enumerate(of_class)]
                write_lines(self.folder / "val" / ANNOTATIONS, boxes)
            self.write_noise(f"tiny-imagenet-{part}", labels, files)
        write_lines(self.folder / CLASSES, wnids)
        write_lines(self.folder / NAMES, [f"{wnid}\tthing {wnid[-2:]}, object" for wnid in wnids])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """List, check and split the images; see ``DatasetSource.load``."""
        folder = self.folder
        obtain(
            folder,
            url=self.url,
            archive=folder.parent / ARCHIVE,
            allowed=self.download,
            published=PUBLISHED if self.url == URL else None,
            missing=f"Expected Tiny ImageNet in {folder}, but there is no such folder: fetch it (248 MB, and half a gigabyte "
            "on disk once it is unpacked) with dataset.download=true, name the folder that holds tiny-imagenet-200 with "
            "dataset.root=DIR, point FEDFACET_DATA at a folder that holds tiny_imagenet/tiny-imagenet-200, or use "
            "`experiment=digits_gsc` instead, which needs no download.",
        )
        wnids = self._classes()
        train = [(path, label) for label, wnid in enumerate(wnids) for path in self._images(folder / "train" / wnid)]
        test = self._annotated(wnids)
        y = np.array([label for _, label in train + test], dtype=np.int64)
        left, val = hold_out(y[: len(train)], None, self.val_fraction, self.seed, "tiny-imagenet-validation")
        return self.dataset(
            [path for path, _ in train + test],
            y,
            None,
            left,
            np.arange(len(train), len(y)),
            val,
            class_names=self._names(wnids),
            remedy=f"restore the file from {ARCHIVE}, or delete the folder {folder} and set dataset.download=true",
            augmentation=CropAndFlip(padding=4) if self.augment else None,
        )

    def _classes(self) -> list[str]:
        """Return the WordNet ids of all classes, in the official order, each of which has a folder."""
        path, train = self.folder / CLASSES, self.folder / "train"
        wnids = [line.strip() for line in self._lines(path) if line.strip()]
        wrong = next((wnid for number, wnid in enumerate(wnids) if not _is_wnid(wnid) or wnid in wnids[:number]), None)
        if wrong is not None or len(wnids) < 2:
            raise DatasetCorruptError(
                f"Expected a WordNet id such as n01443537 in every line of {path}, each once and two at least, but got "
                f"{'fewer' if wrong is None else repr(wrong[:40])}: {self._remedy}."
            )
        folders = {entry.name for entry in train.iterdir() if not entry.name.startswith(".")} if train.is_dir() else set()
        if differing := sorted(folders ^ set(wnids)):
            what = "has no folder" if differing[0] in wnids else "is none of them"
            raise DatasetCorruptError(
                f"Expected a folder in {train} for each of the {len(wnids)} classes of {CLASSES}, but {differing[0]} {what}: "
                f"{self._remedy}."
            )
        return wnids

    def _images(self, folder: Path) -> list[Path]:
        """Return the images of a class, or those that test, in the order of their names."""
        inner = folder / "images"
        paths = sorted(inner.iterdir()) if inner.is_dir() else []
        images = [path for path in paths if path.suffix == ".JPEG" and not path.name.startswith(".")]
        if not images:
            raise DatasetNotFoundError(f"Expected images of Tiny ImageNet in {inner}, but got none: {self._remedy}.")
        return images

    def _annotated(self, wnids: Sequence[str]) -> list[tuple[Path, int]]:
        """Return the images that test and their classes, in the order of the annotations."""
        path, labels = self.folder / "val" / ANNOTATIONS, {wnid: label for label, wnid in enumerate(wnids)}
        rows = [line.split("\t") for line in self._lines(path) if line.strip()]
        present = {image.name: image for image in self._images(self.folder / "val")}
        names = [row[0] for row in rows]
        if faulty := next((row for row in rows if len(row) < 2 or row[1] not in labels), None):
            raise DatasetCorruptError(
                f"Expected an image and one of the {len(wnids)} classes of {CLASSES} in every line of {path}, with a tab "
                f"between them, but got {' '.join(faulty)[:40]!r}: {self._remedy}."
            )
        if missing := [name for name in names if name not in present]:
            raise DatasetNotFoundError(
                f"Expected the {len(names)} images of {path} beside it, but {len(missing)} are missing, the first of them "
                f"{missing[0][:40]!r}: {self._remedy}."
            )
        of_class = [labels[row[1]] for row in rows]
        if len(names) != len(present) or len(set(names)) < len(names) or len(set(of_class)) < len(wnids):
            raise DatasetCorruptError(
                f"Expected {path} to name each of {len(present)} images once, some of every class, but it has {len(names)} "
                f"lines of {len(set(of_class))} classes: {self._remedy}."
            )
        return [(present[name], label) for name, label in zip(names, of_class, strict=True)]

    def _names(self, wnids: Sequence[str]) -> tuple[str, ...]:
        """Return a name for every class; where two would bear the same, with their ids."""
        rows = (line.partition("\t") for line in self._lines(self.folder / NAMES))
        known = {wnid: words.partition(",")[0].strip() for wnid, _, words in rows}
        names = [known.get(wnid) or wnid for wnid in wnids]
        return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))

    def _lines(self, path: Path) -> list[str]:
        if not path.exists():
            raise DatasetNotFoundError(f"Expected Tiny ImageNet's {path.name} in {path.parent}, but got none: {self._remedy}.")
        with reading(path, "a text", self._remedy):
            return path.read_text(encoding="utf-8").splitlines()

    @property
    def _remedy(self) -> str:
        return f"restore it from {self.url}, or delete the folder {self.folder} and set dataset.download=true"


def _is_wnid(text: str) -> bool:
    return re.fullmatch(r"n\d{8}", text) is not None
