"""The offline twin of Spawrious: drawn dogs in drawn places."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.data.dataset import Dataset
from fedfacet.data.drawn_dogs import draw_dog
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, LazyImages
from fedfacet.data.source import DatasetSource
from fedfacet.data.spawrious import BREEDS, LOCATIONS, chosen_names, hold_out


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
    image_size: int = 224
    samples_per_cell: int = 2560
    test_fraction: float = 0.1
    seed: int = 0
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        for name, least in (("image_size", 8), ("samples_per_cell", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"Expected `{name}` to be {least} or larger, but got {getattr(self, name)}.")
        check_within("test_fraction", self.test_fraction, "(0, 1)")
        self.classes = chosen_names("classes", self.classes, BREEDS)
        self.attributes = chosen_names("attributes", self.attributes, LOCATIONS)

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
