"""The layout in which SSL-FL publishes medical images of several institutions: tables of file names, and one of labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.data.dataset import Dataset, InputStore
from fedfacet.data.entries import visible
from fedfacet.data.generated import noise, write_image, write_lines
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

URL = "https://github.com/rui-yan/SSL-FL"


@dataclass(frozen=True, slots=True, eq=False)
class ClientTables:
    """What the tables say; training images first, both parts sorted by name."""

    paths: tuple[Path, ...]  # a file per image
    y: NDArray[np.int64]  # classes, shape (N,)
    client: NDArray[np.int64]  # number of an image's client, in the order of ``clients``; -1 for test images; shape (N,)
    clients: tuple[str, ...]  # names, sorted
    num_train: int

    def dataset(self, inputs: InputStore, class_names: tuple[str, ...], **settings: Any) -> Dataset:
        """Return the data set of these inputs: no attribute, the owners in the column ``client``, no validation set."""
        train, test = np.split(np.arange(len(self.y)), [self.num_train])
        columns = {"client": self.client}
        return Dataset(inputs, self.y, np.zeros_like(self.y), train, test, None, class_names, columns=columns, **settings)


@dataclass(eq=False, kw_only=True)
class MedicalImages(DatasetSource):
    """A data set in this layout; images are decoded when they are first asked for.

    Args:
        root: the data set's own folder.
        image_size: height and width in pixels, 1 or larger.
        augment: whether training images are cut, turned and mirrored.
        max_memory_gb: as in ``LazyImages``; an image takes 442 kB at 384 pixels.
    """

    root: str
    image_size: int = 384
    augment: bool = True
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `dataset.image_size` to be 1 or larger, but got {self.image_size}.")
        self.folder = located(self.root)


def how_to_get(name: str, stand_in: str = "fedld_pneumonia") -> str:
    """Return what the user should do without the data set ``name``, as the end of a sentence.

    ``stand_in`` is the recipe with which PneumoniaMNIST takes its place.
    """
    return (
        f"fetch {name} by the link on {URL}, name its folder with dataset.root=DIR, point FEDFACET_DATA at a folder that holds "
        f"{name}/, or use `experiment={stand_in} dataset.download=true` instead, which fetches 4.2 MB"
    )


def read_tables(root: Path, split: str, class_names: Sequence[str], remedy: str) -> ClientTables:
    """Read who owns which image, and what it shows.

    ``<root>/<split>/<client>.csv`` has a file name a line, or a name and more after a comma; ``test.csv`` alike; ``labels.csv``
    the class of each name. Images are in ``train/`` and ``test/``. ``split`` is the folder of the clients' tables, such as
    ``12_clients/split_real``, and ``remedy`` what the user should do about a fault, as the end of a sentence.

    Raises:
        DatasetNotFoundError: if a table or an image is missing.
        DatasetCorruptError: if an image has no label or an impossible one, two owners, or both trains and tests.
    """
    label_of = _labels(root / "labels.csv", class_names, remedy)
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
    if missing := [path for path in paths if not path.is_file()]:
        raise DatasetNotFoundError(
            f"Expected the {len(paths)} images that the tables of {root} name, but {len(missing)} are missing, the first of "
            f"them {visible(missing[0])}: {remedy}."
        )
    y = np.array([label_of[name] for name in names], dtype=np.int64)
    client = np.array([owner_of.get(name, -1) for name in names], dtype=np.int64)
    return ClientTables(tuple(paths), y, client, tuple(table.stem for table in tables), len(train))


def write_tables(root: Path, splits: Sequence[str], clients: Sequence[str], num_classes: int, suffix: str) -> None:
    """Write noise in this layout, with six images of 16 x 16 pixels per client and in the test.

    Batches of eight leave no lone image of six, which BatchNorm could refuse. ``suffix`` is that of the images: ``.npy`` for
    arrays of fractions, or ``.png``.
    """
    labels: list[str] = []
    for part, count in (("train", 6 * len(clients)), ("test", 6)):
        classes = np.arange(count) % num_classes
        names = [f"{part}_{number:04d}{suffix}" for number in range(count)]
        for name, pixels in zip(names, noise(f"ssl-fl-{part}", classes, (16, 16, 3)), strict=True):
            write_image(root / part / name, pixels)
        labels += [f"{name},{float(label)}" for name, label in zip(names, classes, strict=True)]
        write_lines(root / f"{part}.csv", names)
    write_lines(root / "labels.csv", labels)
    for number, split in enumerate(splits):
        dealt = rng.stream(0, "generated-ssl-fl", number).permutation(6 * len(clients)).reshape(-1, 6)
        for client, images in zip(clients, dealt, strict=True):
            write_lines(root / split / f"{client}.csv", [f"train_{image:04d}{suffix}" for image in images])


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
