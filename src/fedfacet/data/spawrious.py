"""Spawrious224: generated photographs of dogs, with the place as spurious attribute."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.data.archives import obtain
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import noise, write_image
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError

URL = "https://www.dropbox.com/s/hofkueo8qvaqlp3/spawrious224__entire_dataset.tar.gz?dl=1"
ARCHIVE = "spawrious224__entire_dataset.tar.gz"
FOLDER = "spawrious224"
# The archive's third folder, domain_adaptation_ds, belongs to another benchmark.
PARTS = ("0", "1")
BREEDS = ("labrador", "dachshund", "bulldog", "corgi")
LOCATIONS = ("beach", "snow", "desert", "jungle", "mountain", "dirt")
_SUFFIXES = {".png", ".jpg", ".jpeg"}
Labels = NDArray[np.int64]


@dataclass(eq=False)
class Spawrious(DatasetSource):
    """The entire Spawrious224 data set: y = breed, a = place.

    6336 images of 224 x 224 pixels per (breed, place) cell, from ``<root>/spawrious224/{0,1}/<place>/<breed>/``. A part of
    every cell is held out as a test set with the same number of samples in each group. Pixels are normalised by ImageNet's
    statistics; there is no augmentation and no official validation set.

    Source: Lynch et al., Spawrious: A Benchmark for Fine Control of Spurious Correlation Biases, arXiv:2303.05470; the cells
    and the hold-out as in FedDiverse (arXiv:2504.11216), appendix C.

    Deviation: the authors' loader takes files in the order of the file system; here paths are sorted before any draw, so that
    the hold-out is the same on every machine.

    Args:
        root: the folder that holds, or will hold, ``spawrious224``.
        classes: distinct breeds, class 0 first: labrador, dachshund, bulldog, corgi.
        attributes: distinct places, attribute value 0 first: beach, snow, desert, jungle, mountain, dirt.
        image_size: height and width in pixels to which other sizes are resized, 1 or larger.
        test_fraction: the part of every cell that is the test set, in (0, 1), rounded to whole images.
        seed: of the hold-out, 0 or larger; it does not follow the run's seed.
        download: whether to fetch and unpack the archive (about 14.4 GB) where ``spawrious224`` is missing.
        url: of the archive ``spawrious224__entire_dataset.tar.gz``.
        max_memory_gb: as in ``LazyImages``.
    """

    root: str | Path
    _: KW_ONLY
    classes: Sequence[str] = ("labrador", "dachshund")
    attributes: Sequence[str] = ("beach", "snow")
    image_size: int = 224
    test_fraction: float = 0.1
    seed: int = 0
    download: bool = False
    url: str = URL
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `image_size` to be 1 or larger, but got {self.image_size}.")
        check_within("test_fraction", self.test_fraction, "(0, 1)")
        self.classes = chosen_names("classes", self.classes, BREEDS)
        self.attributes = chosen_names("attributes", self.attributes, LOCATIONS)
        self.folder = located(self.root) / FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the archive's layout; see ``DatasetSource.generate``."""
        # What the fullest cell asks for, and some for validation and the test.
        per_cell = 10 + int(np.ceil(1.5 * (20 if demand is None else demand.max()) / (1 - self.test_fraction)))
        cells = list(product(self.classes, self.attributes))
        groups = np.repeat(np.arange(len(cells)), per_cell)
        for number, pixels in enumerate(noise("spawrious", groups, (self.image_size, self.image_size, 3))):
            breed, location = cells[groups[number]]
            write_image(self.folder / PARTS[number % 2] / location / breed / f"{number:05d}.jpg", pixels)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """List, check and split the images; see ``DatasetSource.load``."""
        folder = self.folder
        obtain(
            folder,
            url=self.url,
            archive=folder.parent / ARCHIVE,
            allowed=self.download,
            missing=f"Expected Spawrious224 in {folder}, but there is no such folder: fetch it (a download of about "
            "14.4 GB, and about twice that on disk while it is unpacked) with `python src/train.py experiment=spawrious_gsc "
            "dataset.download=true`, name another folder with dataset.root=DIR, point FEDFACET_DATA at a folder that holds "
            "spawrious/, or run `experiment=spawrious_gsc_synthetic` or `experiment=digits_gsc` instead, which need no "
            "download.",
        )
        found = sorted(
            (path.relative_to(folder).as_posix(), label, attribute)
            for label, breed in enumerate(self.classes)
            for attribute, location in enumerate(self.attributes)
            for part in PARTS
            for path in _images_in(folder / part / location / breed)
        )
        paths = [folder / name for name, _, _ in found]
        y, a = (np.array([row[column] for row in found], dtype=np.int64) for column in (1, 2))
        remedy = f"restore the file from {ARCHIVE}, or delete the folder {folder} and set dataset.download=true"
        images = ImageFiles(paths, self.image_size, remedy=remedy, max_memory_gb=self.max_memory_gb)
        images.check()
        train, test = hold_out(y, a, self.test_fraction, self.seed, "spawrious-test")
        names = tuple(self.classes), tuple(self.attributes)
        return Dataset(images, y, a, train, test, None, *names, IMAGENET_MEAN, IMAGENET_STD)


def chosen_names(argument: str, given: Sequence[str], valid: Sequence[str]) -> tuple[str, ...]:
    """Return ``given`` as a tuple if it holds at least one name, all of them valid and distinct; else raise ValueError."""
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len(set(names)) < len(names) or not set(names) <= set(valid):
        raise ValueError(f"Expected `{argument}` to be distinct names out of {', '.join(valid)}, but got {list(names)}.")
    return names


def hold_out(y: Labels, a: Labels, fraction: float, seed: int, purpose: str) -> tuple[Labels, Labels]:
    """Draw ``round(fraction * n)`` of the n samples of every (class, attribute) cell.

    ``y`` and ``a`` have the shape (N,). Draws are ``rng.stream(seed, purpose, label, attribute)``. Returned are the sorted
    positions that are left, and those that were drawn.
    """
    held = np.zeros(len(y), dtype=bool)
    for label, attribute in np.unique(np.stack([y, a], axis=1), axis=0).tolist():
        cell = np.flatnonzero((y == label) & (a == attribute))
        order = rng.stream(seed, purpose, label, attribute).permutation(cell)
        held[order[: round(fraction * len(cell))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _images_in(folder: Path) -> list[Path]:
    # Names with a leading dot are what some systems leave beside the images.
    files = folder.iterdir() if folder.is_dir() else ()
    images = [path for path in files if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")]
    if not images:
        raise DatasetCorruptError(
            f"Expected images in {folder}, but got none: the data set is incomplete, so delete {folder.parents[2]} and set "
            f"dataset.download=true, or unpack {ARCHIVE} again."
        )
    return images
