"""WaterBirds: photographs of birds set on photographs of places, with the place as spurious attribute."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.data.archives import obtain
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import write_lines
from fedfacet.data.images import ImageSource, refuse_missing
from fedfacet.data.tables import check_published, group_counts, read_table
from fedfacet.errors import DatasetCorruptError

FOLDER = "waterbird_complete95_forest2water2"
ARCHIVE = f"{FOLDER}.tar.gz"
URL = f"https://nlp.stanford.edu/data/dro/{ARCHIVE}"
TABLE = "metadata.csv"
CLASSES = ("landbird", "waterbird")
BACKGROUNDS = ("land", "water")
SPLITS = ("train", "val", "test")
OFFICIAL_COUNTS = {"train": [[3498, 184], [56, 1057]], "val": [[467, 466], [133, 133]], "test": [[2255, 2255], [642, 642]]}
# Of a table in circulation that was made anew: other splits, other places.
_LOOK_ALIKE_TRAIN = [[3525, 186], [54, 1030]]


@dataclass(eq=False)
class WaterBirds(ImageSource):
    """WaterBirds as its authors published it: y = landbird or waterbird, a = background of land or water.

    11,788 images from ``<root>/waterbird_complete95_forest2water2/``, whose ``metadata.csv`` says each one's class, background
    and official split. Images are resized to 256 x 256 pixels without keeping their aspect ratio, 224 x 224 pixels are cut out
    of the middle, and pixels are normalised by ImageNet's statistics.

    Samples of landbirds on land, landbirds on water, waterbirds on land and waterbirds on water: 3498, 184, 56 and 1057 for
    training, 467, 466, 133 and 133 for validation, 2255, 2255, 642 and 642 in the test.

    Source: Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020, arXiv:1911.08731; the transform as in their code
    and in FedDiverse's (arXiv:2504.11216). For non-commercial research and education only.

    Note: test and validation set are balanced over backgrounds within each class, but not over classes: 78 % of the test images
    are landbirds, towards whom the average accuracy leans; the worst-group accuracy does not. The authors' README says that
    Eastern Towhee, Western Meadowlark and Western Wood Pewee are labelled waterbirds by mistake; labels are left as published,
    since all published figures rest on them.

    Deviation: FedDiverse's released code shifts training images by up to 24 pixels and mirrors them at random. The paper does
    not mention it, and no augmentation is done here.

    Args:
        root: the folder that holds, or will hold, ``waterbird_complete95_forest2water2``.
        image_size: height and width in pixels, 1 or larger; images are resized to 256 / 224 times this before the cut.
        verify_counts: whether to refuse a table whose numbers of samples per split, class and background are not the published
            ones. A table that was made anew is in circulation under the same name, with other splits and other places.
        download: whether to fetch and unpack the archive where ``metadata.csv`` is missing.
        url: of the archive ``waterbird_complete95_forest2water2.tar.gz``.
    """

    verify_counts: bool = True
    download: bool = False
    url: str = URL

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder /= FOLDER

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise, wider than high, in the archive's layout; see ``DatasetSource.generate``."""
        per_cell = (5 + int(20 if demand is None else demand.max()), 10, 10)  # in training, validation and test
        groups = np.repeat(np.arange(12), np.repeat(per_cell, 4))
        # The splits of the real table are mixed too.
        split, y, place = np.unravel_index(rng.stream(0, "generated-waterbirds").permutation(groups), (3, 2, 2))
        names = [f"{CLASSES[label]}/{number:05d}.jpg" for number, label in enumerate(y)]
        self.write_noise("waterbirds", 2 * y + place, names, width=self.image_size * 4 // 3)
        rows = enumerate(zip(names, y, split, place, strict=True), start=1)
        lines = [f"{number},{name},{label},{part},{a},/p.jpg" for number, (name, label, part, a) in rows]
        write_lines(self.folder / TABLE, ["img_id,img_filename,y,split,place,place_filename", *lines])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the table and check the images; see ``DatasetSource.load``."""
        folder, path = self.folder, self.folder / TABLE
        obtain(
            path,
            url=self.url,
            archive=folder.parent / ARCHIVE,
            allowed=self.download,
            missing=f"Expected WaterBirds in {folder}, but there is no {TABLE}: fetch {self.url} (about half a "
            "gigabyte, and as much again unpacked) with `python src/train.py experiment=waterbirds dataset.download=true`, "
            "name another folder with dataset.root=DIR, point FEDFACET_DATA at a folder that holds waterbirds/, or run "
            "`experiment=spawrious_gsc_synthetic` or `experiment=digits_gsc` instead, which need no download.",
        )
        names, y, a, split = read_metadata(path)
        if self.verify_counts:
            counts = dict(zip(SPLITS, group_counts((3, 2, 2), split, y, a), strict=True))
            anew = " (a set made anew, with other splits and other places)" if counts["train"] == _LOOK_ALIKE_TRAIN else ""
            check_published(
                counts, OFFICIAL_COUNTS, "WaterBirds", "samples per class and background", path, f"fetch {self.url}", anew
            )
        paths = [folder / name for name in names]
        refuse_missing(
            [image for image in paths if not image.is_file()],
            f"WaterBirds' {len(paths)} images beside {path}",
            f"unpack {self.url} in {folder.parent}, or have it fetched into a new folder with dataset.root=DIR "
            "dataset.download=true",
        )
        return self.dataset(
            paths,
            y,
            a,
            *(np.flatnonzero(split == number) for number in (0, 2, 1)),
            class_names=CLASSES,
            attribute_names=BACKGROUNDS,
            remedy=f"restore the file from {self.url}, or delete the folder {folder} and set dataset.download=true",
            resized=round(self.image_size * 256 / 224),
        )


def read_metadata(path: Path) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Read ``metadata.csv``, whose columns include ``img_filename``, ``y``, ``place`` and ``split``.

    Returns:
        Per image, in the table's order: file names, classes, backgrounds, and splits (0 train, 1 validation, 2 test).

    Raises:
        DatasetCorruptError: if a column is missing, a value is impossible or a file is named twice.
    """
    remedy = f"restore {TABLE} from {URL}"
    table = read_table(path, ("img_filename", "y", "place", "split"), expected="a table", remedy=remedy)
    names = table.columns["img_filename"]
    if "" in names or len(set(names)) < len(names):
        raise DatasetCorruptError(f"Expected {path} to name an image in every line, each once, but it does not: {remedy}.")
    return names, table.codes("y", "01"), table.codes("place", "01"), table.codes("split", "012")
