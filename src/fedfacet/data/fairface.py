"""FairFace: photographs of faces, labelled with gender, age and race, as many of each race as could be found."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import visible
from fedfacet.data.generated import noise, write_image, write_lines
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.tables import read_table
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

PAGE = "https://github.com/joojs/fairface"
PARTS = ("train", "val")
GENDERS = ("Male", "Female")
RACES = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
VALUES = ("white", "non-white")


@dataclass(eq=False, kw_only=True)
class FairFace(DatasetSource):
    """Faces, y = gender as labelled (male 0, female 1), attribute = race as labelled, white 0 or non-white 1.

    ``fairface_label_train.csv`` and ``fairface_label_val.csv`` name the images beside them, such as ``train/1.jpg``; the latter
    is the test set. Pixels are normalised by ImageNet's statistics. The column for ``partition.label`` is ``race``, numbered as
    in ``RACES``.

    Source: Karkkainen and Joo, FairFace, WACV 2021, arXiv:1908.04913, CC BY 4.0; classes and attribute as in the thesis,
    section 6.5.1. The loader does not fetch it. Use the images with a padding of 0.25.

    Deviation: the thesis does not say on what it tests, nor at which size it trains.

    Args:
        root: the folder that holds the two tables and the images.
        image_size: height and width in pixels, 1 or larger; the published images have 224.
        max_memory_gb: as in ``LazyImages``; all images take 15 GB at 224 pixels, and less memory means decoding them anew.
    """

    root: str | Path
    image_size: int = 224
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `image_size` to be 1 or larger, but got {self.image_size}.")
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the published layout; see ``DatasetSource.generate``."""
        enough = 20 + int(20 if demand is None else 1.5 * demand.max())
        draw = rng.stream(0, "generated-fairface")
        for part, per_group in zip(PARTS, (enough, 10), strict=True):
            groups = np.repeat(np.arange(4), per_group)
            lines = ["file,age,gender,race,service_test"]
            for number, pixels in enumerate(noise(f"fairface-{part}", groups, (self.image_size, self.image_size, 3)), 1):
                gender, attribute = divmod(int(groups[number - 1]), 2)
                race = RACES[int(draw.integers(1, len(RACES))) if attribute else 0]
                write_image(self.folder / part / f"{number}.jpg", pixels)
                lines.append(f"{part}/{number}.jpg,20-29,{GENDERS[gender]},{race},True")
            write_lines(self.folder / _table(part), lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read both tables and check the images; see ``DatasetSource.load``."""
        folder, parts = self.folder, [self._part(part) for part in PARTS]
        paths = [path for part in parts for path in part[0]]
        gender, race = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
        images = ImageFiles(paths, self.image_size, remedy=f"restore the file from {PAGE}", max_memory_gb=self.max_memory_gb)
        if missing := [path for path in paths if not path.is_file()]:
            raise DatasetNotFoundError(
                f"Expected FairFace's {len(paths)} images beside the tables in {folder}, but {len(missing)} are missing, the "
                f"first of them {visible(missing[0])}: unpack the images with a padding of 0.25, linked on {PAGE}, in {folder}."
            )
        images.check()
        train, test = np.split(np.arange(len(paths)), [len(parts[0][0])])
        a = (race > 0).astype(np.int64)
        return Dataset(
            *(images, gender, a, train, test, None, GENDERS, VALUES, IMAGENET_MEAN, IMAGENET_STD), columns={"race": race}
        )

    def _part(self, part: str) -> tuple[list[Path], NDArray[np.int64], NDArray[np.int64]]:
        """Return the paths of a part's images, their genders and their races."""
        path = self.folder / _table(part)
        if not path.exists():
            raise DatasetNotFoundError(
                f"Expected {path.name} of FairFace in {self.folder}, but it is not there: put both tables and the images with "
                f"a padding of 0.25 (0.6 GB), linked on {PAGE}, there, name the folder with dataset.root=DIR, point "
                "FEDFACET_DATA at a folder that holds fairface/, or run `experiment=adult_gsc dataset.download=true` instead, "
                "which fetches 6 MB."
            )
        remedy = f"restore it from {PAGE}"
        table = read_table(path, ("file", "gender", "race"), expected="a table of FairFace", remedy=remedy)
        names = table.columns["file"]
        if wrong := next(_strange(names, part), None):
            raise DatasetCorruptError(
                f"Expected every line of {path} to name an image such as {part}/1.jpg, each once, but got {wrong[:40]!r}: "
                f"{remedy}."
            )
        return [self.folder / name for name in names], table.codes("gender", GENDERS), table.codes("race", RACES)


def _table(part: str) -> str:
    return f"fairface_label_{part}.csv"


def _strange(names: list[str], part: str) -> Iterator[str]:
    """Yield names that are no image of a part, or are there twice."""
    seen: set[str] = set()
    for name in names:
        folder, _, file = name.partition("/")
        if folder != part or "/" in file or not file.endswith(".jpg") or name in seen:
            yield name
        seen.add(name)
