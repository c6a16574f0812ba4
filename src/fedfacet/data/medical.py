"""Medical images of several institutions, as SSL-FL publishes them: tables of file names, and one of labels."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet import rng
from fedfacet.arguments import Choice
from fedfacet.data.augmentation import ZoomTurnAndFlip
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import noise, write_image, write_lines
from fedfacet.data.images import ImageFiles, ImageSource, refuse_missing
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

URL = "https://github.com/rui-yan/SSL-FL"


@dataclass(eq=False)
class _MedicalImages(ImageSource):
    """A data set in this layout; images are decoded when they are first asked for.

    ``<root>/<split>/<client>.csv`` has a file name a line, or a name and more after a comma; ``test.csv`` alike; ``labels.csv``
    the class of each name. Images are in ``train/`` and ``test/``. No table or image may be missing, no image may lack a label
    or have an impossible one, or two owners, or both train and test.

    Args:
        root: the data set's own folder.
        image_size: height and width in pixels, 1 or larger.
        augment: whether training images are cut, turned and mirrored.
        max_memory_gb: as in ``LazyImages``; an image takes 442 kB at 384 pixels.
    """

    NAME: ClassVar[str]
    CLASSES: ClassVar[tuple[str, ...]]
    CLIENTS: ClassVar[tuple[str, ...]]
    SPLITS: ClassVar[tuple[str, ...]]
    """The folders of the clients' tables."""

    SUFFIX: ClassVar[str]
    ZOOM: ClassVar[ZoomTurnAndFlip]

    _: KW_ONLY
    image_size: int = 384
    augment: bool = True

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the real layout, six images of 16 x 16 pixels for every client and the test.

        Batches of eight leave no lone image of six, which BatchNorm could refuse.
        """
        labels: list[str] = []
        for part, count in (("train", 6 * len(self.CLIENTS)), ("test", 6)):
            classes = np.arange(count) % len(self.CLASSES)
            names = [f"{part}_{number:04d}{self.SUFFIX}" for number in range(count)]
            for name, pixels in zip(names, noise(f"ssl-fl-{part}", classes, (16, 16, 3)), strict=True):
                write_image(self.folder / part / name, pixels)
            labels += [f"{name},{float(label)}" for name, label in zip(names, classes, strict=True)]
            write_lines(self.folder / f"{part}.csv", names)
        write_lines(self.folder / "labels.csv", labels)
        for number, split in enumerate(self.SPLITS):
            dealt = rng.stream(0, "generated-ssl-fl", number).permutation(6 * len(self.CLIENTS)).reshape(-1, 6)
            for client, images in zip(self.CLIENTS, dealt, strict=True):
                write_lines(self.folder / split / f"{client}.csv", [f"train_{image:04d}{self.SUFFIX}" for image in images])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the tables and check the images; see ``DatasetSource.load``."""
        return self._read(self.SPLITS[0], "fedld_pneumonia")

    def _read(self, split: str, stand_in: str, **settings: Any) -> Dataset:
        """Return the data set of one split; ``stand_in`` is the recipe with which PneumoniaMNIST takes its place."""
        root = self.folder
        remedy = (
            f"fetch {self.NAME} by the link on {URL}, name its folder with dataset.root=DIR, point FEDFACET_DATA at a folder "
            f"that holds {self.NAME}/, or use `experiment={stand_in} dataset.download=true` instead, which fetches 4.2 MB"
        )
        label_of = _labels(root / "labels.csv", self.CLASSES, remedy)
        tables = sorted((root / split).glob("*.csv"))
        if not tables:
            raise DatasetNotFoundError(f"Expected clients' tables in {root / split}, but there are none: {remedy}.")
        owner_of: dict[str, int] = {}
        for number, table in enumerate(tables):
            for name in _names(table, remedy):
                if owner_of.setdefault(name, number) != number:
                    raise DatasetCorruptError(
                        f"Expected every image to have one owner, but {name!r} is in {tables[owner_of[name]].name} and "
                        f"{table.name} of {root / split}: {remedy}."
                    )
        train, test = sorted(owner_of), _names(root / "test.csv", remedy)
        if both := sorted(set(train) & set(test)):
            raise DatasetCorruptError(
                f"Expected test images to belong to no client, but {both[0]!r} is in test.csv and in "
                f"{tables[owner_of[both[0]]].name} of {root / split}: {remedy}."
            )
        names = [*train, *test]
        if unlabelled := [name for name in names if name not in label_of]:
            raise DatasetCorruptError(
                f"Expected a label of every image in {root / 'labels.csv'}, but {len(unlabelled)} have none, the first of them "
                f"{unlabelled[0]!r}: {remedy}."
            )
        paths = [root / "train" / name for name in train] + [root / "test" / name for name in test]
        refuse_missing(
            [path for path in paths if not path.is_file()], f"the {len(paths)} images that the tables of {root} name", remedy
        )
        return self.dataset(
            paths,
            np.array([label_of[name] for name in names], dtype=np.int64),
            None,
            *np.split(np.arange(len(names)), [len(train)]),
            class_names=self.CLASSES,
            remedy=remedy,
            # In the order of the tables' names; nobody owns test images.
            columns={"client": np.array([owner_of.get(name, -1) for name in names], dtype=np.int64)},
            augmentation=self.ZOOM if self.augment else None,
            **settings,
        )


@dataclass(eq=False)
class CovidFL(_MedicalImages):
    """SSL-FL's COVID-FL: y = normal, pneumonia or COVID-19, no attribute, natural clients in the label column ``client``.

    From ``<root>/``: ``labels.csv``, ``test.csv``, ``train/``, ``test/`` (images) and ``12_clients/split_real/``, whose tables
    say which institution owns which image; some have images of one class only. ``partition=natural partition.label=client``
    makes these the clients. All are tested on one common set, and there is no official validation set.

    Source: Yan et al., Label-Efficient Self-Supervised Federated Learning, IEEE TMI 2023, arXiv:2205.08576; training transform
    (a box of 80 to 120 % of the area, 10 degrees, mirrored) and ImageNet's statistics as in FedLD.

    Deviation: validation takes images of every class before the clients get theirs, as in ``Retina``. An image is resized to a
    square as a whole; FedLD resizes its shorter side and cuts the middle out.

    The arguments are those of both data sets.
    """

    NAME = "COVID-FL"
    CLASSES = ("normal", "pneumonia", "COVID-19")
    CLIENTS = (
        *("bimcv", "cohen", "eurorad", "gz", "ml-workgroup", "ricord_c"),
        *("rsna-0", "rsna-1", "rsna-2", "rsna-3", "rsna-4", "sirm"),
    )
    SPLITS = ("12_clients/split_real",)
    SUFFIX = ".png"
    ZOOM = ZoomTurnAndFlip(0.8, 1.2, 10.0)


@dataclass(eq=False)
class Retina(_MedicalImages):
    """SSL-FL's Retina: y = diabetic retinopathy, no attribute, natural clients in the label column ``client``.

    From ``<root>/``: ``labels.csv``, ``test.csv``, ``train/``, ``test/`` (images as ``.npy`` arrays) and
    ``5_clients/split_{1,2,3}/``, whose tables say who owns which image. ``partition=natural partition.label=client`` makes
    these the clients. All are tested on one common set, and there is no official validation set.

    Source: Yan et al., Label-Efficient Self-Supervised Federated Learning, IEEE TMI 2023, arXiv:2205.08576; training transform
    (a box of 60 to 100 % of the area, 10 degrees, mirrored) and statistics as in FedLD.

    Note: sources differ on how skewed the splits are. The script that made them draws from Dirichlet distributions with alpha =
    100, 1 and 0.5. FedLD's text says 100, 0.1 and 0.5, and calls split 2 moderate and split 3 severe, which only the script's
    values are.

    Deviation: validation takes as many images of either class as a tenth of the smaller one, at most 300, before the clients
    get theirs (``partition_and_hold_out``), and clients train on fewer images than SSL-FL's tables name. Arrays are brought to
    ``image_size`` in one step (FedLD: to 256 pixels, then to 384). An array of fractions in [0, 1] is scaled to bytes; SSL-FL's
    code would cut it off to zeros.

    The other arguments are those of both data sets.

    Args:
        split: 1, 2 or 3.
    """

    NAME = "Retina"
    CLASSES = ("normal", "diseased")
    CLIENTS = tuple(f"client_{number}" for number in range(1, 6))
    SPLITS = tuple(f"5_clients/split_{split}" for split in (1, 2, 3))
    SUFFIX = ".npy"
    ZOOM = ZoomTurnAndFlip(0.6, 1.0, 10.0)

    _: KW_ONLY
    split: Annotated[int, Choice(1, 2, 3)] = 1

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the tables; see ``DatasetSource.load``."""
        stand_in = "fedld_pneumonia" if self.split == 2 else f"fedld_pneumonia_split{self.split}"
        statistics = {"mean": (0.5007, 0.5010, 0.5019), "std": (0.0342, 0.0535, 0.0484)}
        return self._read(self.SPLITS[self.split - 1], stand_in, kind=_Arrays, check=False, **statistics)


class _Arrays(ImageFiles):
    """Images in ``.npy`` files: grey or colour, as bytes, as fractions, or as numbers up to 255."""

    def make(self, index: int) -> NDArray[np.uint8]:
        path = self.paths[index]
        with reading(path, "an array", self.remedy):
            return self._pixels(path, np.load(path, mmap_mode="r", allow_pickle=False))  # never more memory than the file takes

    def _pixels(self, path: Path, array: NDArray[Any]) -> NDArray[np.uint8]:
        if array.ndim == 2:
            array = np.stack([array] * 3, axis=2)
        if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype.kind not in "uif" or not np.isfinite(array).all():
            raise DatasetCorruptError(
                f"Expected an image of shape (H, W) or (H, W, 1, 3 or 4) and finite numbers, but got {path} of shape "
                f"{array.shape} and type {array.dtype}: {self.remedy}."
            )
        if array.dtype.kind == "f" and array.max() <= 1:
            array = array * 255
        colours = array[:, :, :3] if array.shape[2] > 1 else array.repeat(3, axis=2)
        image = Image.fromarray(np.rint(colours).clip(0, 255).astype(np.uint8))
        return np.asarray(image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR))


def _lines(path: Path, remedy: str) -> list[list[str]]:
    if not path.is_file():
        raise DatasetNotFoundError(f"Expected the table {path}, but there is no such file: {remedy}.")
    with reading(path, "a table", remedy):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [[entry.strip() for entry in line.split(",")] for line in lines if line.strip()]


def _names(path: Path, remedy: str) -> list[str]:
    """Return the distinct names of a table, sorted; the order of a set would depend on Python's hash seed."""
    names = sorted({line[0] for line in _lines(path, remedy)})
    if not names:
        raise DatasetCorruptError(f"Expected file names in {path}, but got none: {remedy}.")
    if outside := [name for name in names if name in ("", "..") or Path(name).is_absolute() or ".." in Path(name).parts]:
        raise DatasetCorruptError(
            f"Expected names of files below the data set's folder in {path}, but got {outside[0]!r}: {remedy}."
        )
    return names


def _labels(path: Path, class_names: Sequence[str], remedy: str) -> dict[str, int]:
    valid = {float(label): label for label in range(len(class_names))}
    labels: dict[str, int] = {}
    for line in _lines(path, remedy):
        try:
            label = valid[float(line[1])]
        except (IndexError, ValueError, KeyError):
            raise DatasetCorruptError(
                f"Expected lines `file name,label` with a label from 0 to {len(class_names) - 1} in {path}, but got "
                f"{','.join(line)!r}: {remedy}."
            ) from None
        if labels.setdefault(line[0], label) != label:
            raise DatasetCorruptError(f"Expected one label of {line[0]!r} in {path}, but got two: {remedy}.")
    return labels
