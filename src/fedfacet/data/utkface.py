"""UTKFace: photographs of faces whose names say age, gender and race."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import visible
from fedfacet.data.generated import noise, write_image
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.spawrious import hold_out
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

PAGE = "https://susanqq.github.io/UTKFace/"
GENDERS = ("male", "female")
RACES = ("White", "Black", "Asian", "Indian", "Others")
VALUES = ("white", "non-white")

_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d{1,20}\.jpg(\.chip\.jpg)?")
_OLDEST = 116

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class UTKFace(DatasetSource):
    """Faces, y = gender as labelled (male 0, female 1), attribute = race as labelled, white 0 or non-white 1.

    Images lie in one folder; a name such as ``26_1_0_20170116174525125.jpg.chip.jpg`` says age, gender, race and time. A file
    whose name lacks one of them is skipped, and the log says how many are. A fifth of each group tests. Pixels are normalised
    by ImageNet's statistics. Columns for ``partition.label`` are ``race`` (White, Black, Asian, Indian, Others) and ``age``.

    Source: Zhang, Song and Qi, Age Progression/Regression by Conditional Adversarial Autoencoder, CVPR 2017; classes and
    attribute as in the thesis, section 6.5.1. For non-commercial research only. The loader does not fetch it.

    Deviation: the thesis does not say how it splits off a test set, nor at which size it trains.

    Args:
        root: the folder that holds the images.
        image_size: height and width in pixels, 1 or larger; the published images have 200.
        test_fraction: the part of every group that tests, in (0, 1).
        seed: of the draw of the test set; it does not follow the run's seed.
        max_memory_gb: as in ``LazyImages``; all images take 3.6 GB at 224 pixels.
    """

    root: str | Path
    image_size: int = 224
    test_fraction: float = 0.2
    seed: int = 0
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `image_size` to be 1 or larger, but got {self.image_size}.")
        check_within("test_fraction", self.test_fraction, "(0, 1)")
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise under names of the real kind; see ``DatasetSource.generate``."""
        per_group = 20 + int(np.ceil(1.5 * (20 if demand is None else demand.max()) / (1 - self.test_fraction)))
        groups = np.repeat(np.arange(4), per_group)
        draw = rng.stream(0, "generated-utkface")
        for number, pixels in enumerate(noise("utkface", groups, (self.image_size, self.image_size, 3))):
            gender, attribute = divmod(int(groups[number]), 2)
            race = int(draw.integers(1, 5)) if attribute else 0
            name = f"{draw.integers(1, 100)}_{gender}_{race}_201701{number:011d}.jpg.chip.jpg"
            write_image(self.folder / name, pixels)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the names and check the images; see ``DatasetSource.load``."""
        folder = self.folder
        if not folder.is_dir():
            raise DatasetNotFoundError(
                f"Expected the images of UTKFace in {folder}, but there is no such folder: unpack UTKFace.tar.gz, aligned and "
                f"cropped, of {PAGE} (0.1 GB) there, name the folder that holds the images with dataset.root=DIR, point "
                "FEDFACET_DATA at a folder that holds UTKFace/, or run `experiment=adult_gsc dataset.download=true` instead, "
                "which fetches 6 MB."
            )
        names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".jpg")
        parsed = {name: match for name in names if (match := _NAME.fullmatch(name)) and int(match[1]) <= _OLDEST}
        if skipped := [name for name in names if name not in parsed]:
            log.warning(
                "%d of %d images in %s are skipped, whose names do not say age, gender and race, %s the first of them.",
                *(len(skipped), len(names), folder, visible(skipped[0])),
            )
        age, gender, race = (np.array([int(match[part]) for match in parsed.values()], dtype=np.int64) for part in (1, 2, 3))
        a = (race > 0).astype(np.int64)
        sizes = np.bincount(2 * gender + a, minlength=4)
        if sizes.min() < 2:
            raise DatasetCorruptError(
                f"Expected two or more images of every gender, white and non-white, in {folder}, under names such as "
                f"26_1_0_20170116174525125.jpg.chip.jpg, but got {sizes.reshape(2, 2).tolist()}: unpack UTKFace.tar.gz anew."
            )
        images = ImageFiles(
            [folder / name for name in parsed],
            self.image_size,
            remedy="restore the file from UTKFace.tar.gz",
            max_memory_gb=self.max_memory_gb,
        )
        images.check()
        train, test = hold_out(gender, a, self.test_fraction, self.seed, "utkface-test")
        columns = {"race": race, "age": age}
        return Dataset(*(images, gender, a, train, test, None, GENDERS, VALUES, IMAGENET_MEAN, IMAGENET_STD), columns=columns)
