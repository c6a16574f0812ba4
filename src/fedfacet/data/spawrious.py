"""Spawrious224, generated photographs of dogs with the place as spurious attribute, and its twin of drawings."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.data.archives import obtain
from fedfacet.data.dataset import Dataset
from fedfacet.data.drawn_dogs import draw_dog
from fedfacet.data.generated import enough
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageSource, LazyImages
from fedfacet.data.labels import hold_out
from fedfacet.data.source import DatasetSource
from fedfacet.errors import DatasetCorruptError

URL = "https://www.dropbox.com/s/hofkueo8qvaqlp3/spawrious224__entire_dataset.tar.gz?dl=1"
ARCHIVE = "spawrious224__entire_dataset.tar.gz"
FOLDER = "spawrious224"
# The archive's third folder, domain_adaptation_ds, belongs to another benchmark.
PARTS = ("0", "1")
BREEDS = ("labrador", "dachshund", "bulldog", "corgi")
LOCATIONS = ("beach", "snow", "desert", "jungle", "mountain", "dirt")
_SUFFIXES = {".png", ".jpg", ".jpeg"}


@dataclass(eq=False)
class Spawrious(ImageSource):
    """The entire Spawrious224 data set: y = breed, a = place.

    6336 images of 224 x 224 pixels per (breed, place) cell, from ``<root>/spawrious224/{0,1}/<place>/<breed>/``. A part of
    every cell is held out as a test set with the same number of samples in each group. Pixels are normalised by ImageNet's
    statistics; there is no augmentation and no official validation set.

    Source: Lynch et al., Spawrious: A Benchmark for Fine Control of Spurious Correlation Biases, arXiv:2303.05470; the cells
    and the hold-out as in FedDiverse (arXiv:2504.11216), section 5.1 and appendix A.

    Deviation: the authors' loader takes files in the order of the file system; here paths are sorted before any draw, so that
    the hold-out is the same on every machine.

    Args:
        root: the folder that holds, or will hold, ``spawrious224``.
        classes: distinct breeds, class 0 first: labrador, dachshund, bulldog, corgi.
        attributes: distinct places, attribute value 0 first: beach, snow, desert, jungle, mountain, dirt.
        test_fraction: the part of every cell that is the test set, in (0, 1), rounded to whole images.
        seed: of the hold-out, 0 or larger; it does not follow the run's seed.
        download: whether to fetch and unpack the archive (about 14.4 GB) where ``spawrious224`` is missing.
        url: of the archive ``spawrious224__entire_dataset.tar.gz``.
    """

    _: KW_ONLY
    classes: Sequence[str] = ("labrador", "dachshund")
    attributes: Sequence[str] = ("beach", "snow")
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.1
    seed: int = 0
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classes = _chosen("classes", self.classes, BREEDS)
        self.attributes = _chosen("attributes", self.attributes, LOCATIONS)
        self.folder /= FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the archive's layout; see ``DatasetSource.generate``."""
        cells = list(product(self.classes, self.attributes))
        groups = np.repeat(np.arange(len(cells)), enough(demand, self.test_fraction)[2] - 10)
        folders = [f"{PARTS[number % 2]}/{cells[group][1]}/{cells[group][0]}" for number, group in enumerate(groups)]
        self.write_noise("spawrious", groups, [f"{folder}/{number:05d}.jpg" for number, folder in enumerate(folders)])

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
        y, a = (np.array([row[column] for row in found], dtype=np.int64) for column in (1, 2))
        return self.dataset(
            [folder / name for name, _, _ in found],
            y,
            a,
            *hold_out(y, a, self.test_fraction, self.seed, "spawrious-test"),
            class_names=self.classes,
            attribute_names=tuple(self.attributes),
            remedy=f"restore the file from {ARCHIVE}, or delete the folder {folder} and set dataset.download=true",
        )


@dataclass(eq=False, kw_only=True)
class SyntheticSpawrious(DatasetSource):
    """Drawn dogs (y = breed) in drawn places (a = place), at any resolution and without any file.

    The breed shows in the proportions of the silhouette and, weakly, in the coat, whose colours the breeds share; size,
    position, pose, facing, proportions and light vary. The place fills the rest of the image with its own palette and texture,
    which a network learns first: where place and breed are correlated, it pays for that on the rare combinations.

    Image i is drawn from ``rng.stream(seed, "synthetic-spawrious", i)`` when it is first asked for. At another ``image_size``
    it shows the same scene.

    Args:
        classes: as in ``Spawrious``.
        attributes: as in ``Spawrious``.
        image_size: height and width in pixels, 8 or larger.
        samples_per_cell: images per (breed, place) cell, training and test together, 1 or larger. The default has room for
            2000 a cell with clients (GAI and Spawrious4; GSC takes 1760), 300 for validation and a tenth for the test.
        test_fraction: as in ``Spawrious``.
        seed: of the drawings and the hold-out, 0 or larger; it does not follow the run's seed.
        max_memory_gb: as in ``LazyImages``.
    """

    classes: Sequence[str] = ("labrador", "dachshund")
    attributes: Sequence[str] = ("beach", "snow")
    image_size: Annotated[int, Whole(8, "8 or larger")] = 224
    samples_per_cell: Annotated[int, Whole(words="1 or larger")] = 2560
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.1
    seed: int = 0
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classes = _chosen("classes", self.classes, BREEDS)
        self.attributes = _chosen("attributes", self.attributes, LOCATIONS)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Label and split the images to be drawn; see ``DatasetSource.load``."""
        names = tuple(self.classes), tuple(self.attributes)
        cells = np.arange(len(names[0]) * len(names[1]))
        y, a = np.divmod(np.repeat(cells, self.samples_per_cell), len(names[1]))
        train, test = hold_out(y, a, self.test_fraction, self.seed, "synthetic-spawrious-test")
        return Dataset(_DrawnImages(self, y, a), y, a, train, test, None, *names, IMAGENET_MEAN, IMAGENET_STD)


class _DrawnImages(LazyImages):
    def __init__(self, source: SyntheticSpawrious, y: NDArray[np.int64], a: NDArray[np.int64]) -> None:
        super().__init__(len(y), source.image_size, max_memory_gb=source.max_memory_gb)
        self._source, self._y, self._a = source, y, a

    def make(self, index: int) -> NDArray[np.uint8]:
        breed, place = self._source.classes[self._y[index]], self._source.attributes[self._a[index]]
        return draw_dog(breed, place, self.image_size, rng.stream(self._source.seed, "synthetic-spawrious", index))


def _chosen(argument: str, given: Sequence[str], valid: Sequence[str]) -> tuple[str, ...]:
    """Return ``given`` as a tuple if it holds at least one name, all of them valid and distinct; else raise ValueError."""
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len(set(names)) < len(names) or not set(names) <= set(valid):
        raise ValueError(f"Expected `{argument}` to be distinct names out of {', '.join(valid)}, but got {list(names)}.")
    return names


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
