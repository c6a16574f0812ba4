"""Your own images, in folders."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Whole
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import Place, trimmed, visible
from fedfacet.data.generated import enough, noise, write_image, write_lines
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.labels import LabelledData
from fedfacet.data.source import located_inside
from fedfacet.data.tables import header_of, read_table
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

log = logging.getLogger(__name__)

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(eq=False, kw_only=True)
class ImageFolder(LabelledData):
    """Images whose labels are the names of the folders they lie in, or stand in a csv file.

    ``folders`` says what the folders' names mean, from the outermost inwards: ``[class]`` is the layout of torchvision's
    ``ImageFolder``, ``[split, class]`` has the folders ``train``, ``test`` and maybe ``val`` above it, and
    ``[hospital, class]`` has a folder for each hospital, of which ``partition=natural partition.label=hospital`` makes clients.
    With ``labels`` they stand in that csv file instead, whose column ``file`` has paths as seen from the folder; where it has
    no column of the class, the folders say what it leaves open. All further levels or columns may name clients. Images become
    RGB, and their pixels are normalised by ImageNet's statistics. Names that begin with a dot are passed over.

    Args:
        root: the folder that holds the one called ``folder``.
        folder: of the images.
        folders: what each level of folders says: ``class``, ``attribute``, ``split``, or a word of your own.
        labels: name of a csv file in the root, whose first line names the columns; ``None`` means that folders say it all.
        file: the column of that file that has the images' paths.
        target: the level or column that is the class.
        split: the one that says ``train``, ``val`` or ``test``; ``None`` means the one called ``split``. Without it
            ``test_fraction`` of every (class, attribute) group tests.
        image_size: height and width in pixels that images are resized to, 1 or larger.
        max_memory_gb: as in ``LazyImages``.
    """

    folder: str = "images"
    folders: Sequence[str] = ("class",)
    labels: str | None = None
    file: str = "file"
    split: str | None = None
    image_size: Annotated[int, Whole(words="1 or larger")] = 64
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is None and (len(set(self.folders)) < len(self.folders) or self.target not in self.folders):
            raise ConfigError(
                f"Expected `dataset.folders` to have each word once, {self.target!r} among them, but got "
                f"[{', '.join(self.folders)}]: say what each level of folders means, or name a csv file with `dataset.labels`."
            )
        self.path = located_inside(self.root, self.folder, "folder")
        self.table = None if self.labels is None else located_inside(self.root, self.labels, "labels")

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the layout that the settings describe; see ``DatasetSource.generate``."""
        classes, values, per_group = enough(demand, self.test_fraction)
        attribute = self.attribute or "attribute"
        groups = np.repeat(np.arange(classes * values), per_group)
        lines = [f"{self.file},{self.target},{attribute}"]
        for number, pixels in enumerate(noise("image_folder", groups, (self.image_size, self.image_size, 3))):
            y, a = divmod(int(groups[number]), values)
            split = "train" if number % 3 else "test"
            meanings = {self.target: f"class {y}", attribute: f"value {a}", self.split or "split": split}
            name = f"{number:05d}.png"
            if self.table is None:
                name = "/".join([*(meanings.get(level, f"{level} {number % 2}") for level in self.folders), name])
            lines.append(f"{name},{y},{a}")
            write_image(self.path / name, pixels)
        if self.table is not None:
            write_lines(self.table, lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Find the images and check them; see ``DatasetSource.load``."""
        images, columns, where = self._found()
        labels = self.read_labels(columns, split=self.split, source=self.table or self.path, where=where)
        images.check()
        return labels.dataset(images, mean=IMAGENET_MEAN, std=IMAGENET_STD)

    def labelled(self) -> tuple[ImageFiles, dict[str, list[str]]]:
        """Return the images, none of which is read yet, and what is said of each.

        Raises:
            DatasetNotFoundError, DatasetCorruptError: as ``load``.
        """
        return self._found()[:2]

    def _found(self) -> tuple[ImageFiles, dict[str, list[str]], Place]:
        """Return the images, what is said of each, and where that is said."""
        if not self.path.is_dir():
            raise DatasetNotFoundError(
                f"Expected a folder of images at {self.path}, but there is none: give `dataset.root=DIR dataset.folder=NAME`, "
                "or point FEDFACET_DATA at the folder that holds it."
            )
        names, columns, where = self._in_folders() if self.table is None else self._in_table(self.table)
        images = ImageFiles(
            [self.path / name for name in names],
            self.image_size,
            remedy="replace or delete the file",
            max_memory_gb=self.max_memory_gb,
        )
        return images, columns, where

    def _in_folders(self) -> tuple[list[str], dict[str, list[str]], Place]:
        """Return the images' paths, sorted, what the folders above each say, and where that is."""
        paths, others = self._files()
        if not paths:
            raise DatasetCorruptError(
                f"Expected images in {self.path}, but there are none that end in {', '.join(sorted(SUFFIXES))}: put them there."
            )
        levels = self._levels(paths)
        full = {folder for path in paths for folder in path.parents}
        empty = [path for path in others if path not in full and (self.path / path).is_dir()]
        depth = self.folders.index(self.target)
        values = {trimmed(name) for name in levels[self.target]}
        if lost := next((path for path in empty if len(path.parts) == depth + 1 and trimmed(path.name) not in values), None):
            raise DatasetCorruptError(
                f"Expected images in every folder of {self.path} that names a class, but {str(lost)!r} has none: put some "
                "there (links to folders are not followed), or delete it."
            )
        files = [path for path in others if not (self.path / path).is_dir()]
        _warn("folders without images", empty, self.path)
        _warn(f"files that do not count, since they end in none of {', '.join(sorted(SUFFIXES))}", files, self.path)
        return [path.as_posix() for path in paths], levels, lambda row: repr(str(self.path / paths[row]))

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Return the paths of images, and all others, sorted; no names that begin with a dot."""
        found = sorted(path.relative_to(self.path) for path in self.path.rglob("*"))
        seen = [path for path in found if not any(part.startswith(".") for part in path.parts)]
        images = [path for path in seen if path.suffix.lower() in SUFFIXES]
        return images, [path for path in seen if path.suffix.lower() not in SUFFIXES]

    def _levels(self, paths: Sequence[PurePath]) -> dict[str, list[str]]:
        """Return what the folders above each image say."""
        if stray := next((path for path in paths if len(path.parts) != 1 + len(self.folders)), None):
            raise DatasetCorruptError(
                f"Expected every image in {self.path} to lie in {len(self.folders)} folders, whose names say "
                f"{', '.join(self.folders)} (`dataset.folders`), but {visible(stray)} lies in {len(stray.parts) - 1}: "
                "move it, or say what each level means."
            )
        return {level: [path.parts[depth] for path in paths] for depth, level in enumerate(self.folders)}

    def _in_table(self, path: Path) -> tuple[list[str], dict[str, list[str]], Place]:
        """Return the images' paths in the order of the lines, the other columns, and folders' if these lack the class."""
        remedy = "correct the table"
        table = read_table(path, header_of(path, expected=_TABLE, remedy=remedy), expected=_TABLE, remedy=remedy)
        columns = dict(table.columns)
        if self.file not in columns:
            raise ConfigError(
                f"Expected `dataset.file` to name the column of {path} that has the images' paths, but got {self.file!r}: "
                f"choose one of {', '.join(columns)}."
            )
        names = columns.pop(self.file)
        present = {found.relative_to(self.path).as_posix() for found in self.path.rglob("*")}
        if absent := [line for line, given in zip(table.lines, names, strict=True) if given not in present]:
            raise DatasetCorruptError(
                f"Expected every image of {path} in {self.path}, but {len(absent)} of {len(names)} are not there, the first "
                f"in line {absent[0]}: give paths as seen from {self.path}."
            )
        _warn(
            f"images that do not count, since no line of {visible(path)} names them",
            sorted({*map(str, self._files()[0])} - {*names}),
            self.path,
        )
        _warn(
            "images that several lines name, and that count as often",
            [name for name, times in Counter(names).items() if times > 1],
            path,
        )
        paths = [PurePosixPath(name) for name in names]
        in_folders = any(len(path.parts) == 1 + len(self.folders) for path in paths)
        if in_folders and self.target not in columns and self.target in self.folders:
            columns = self._levels(paths) | columns
        return names, columns, table.place


def _warn(what: str, paths: Sequence[object], source: Path) -> None:
    if paths:
        log.warning("There are %s in %s: %d, the first of them %r.", what, visible(source), len(paths), str(paths[0]))


_TABLE = "a table of labels"
