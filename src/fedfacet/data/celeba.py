"""CelebA: photographs of celebrities' faces, forty yes-or-no labels each, and whose face it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import visible
from fedfacet.data.generated import noise, write_image, write_lines
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
IMAGES = "img_align_celeba"
LABELS, SPLITS, IDENTITIES = "list_attr_celeba", "list_eval_partition", "identity_CelebA"
_CODES = {"-1": 0, "1": 1}


@dataclass(eq=False, kw_only=True)
class CelebA(DatasetSource):
    """Faces, y = one label, attribute = another, by default wavy hair and gender as labelled (female 0, male 1).

    ``root`` holds the lists and the folder ``img_align_celeba`` as torchvision unpacks them, or as WILDS does, whose lists are
    csv files. Training, validation and test images are the official 162,770, 19,867 and 19,962. Pixels are normalised by
    ImageNet's statistics. The column ``identity`` says who is on an image, where ``identity_CelebA.txt`` is there; with
    ``partition=celeba_gsc``, whose ``keep_together`` names it, clients hold whole individuals.

    Source: Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766; class and attribute
    as in the thesis, section 6.5.1. For non-commercial research only. The loader does not fetch it.

    Deviation: the thesis does not say on what it tests, nor at which size it trains.

    Args:
        root: the folder that holds the lists and the images.
        target: the label that is the class; one of the forty.
        attribute: the label that is the attribute; another one.
        image_size: height and width in pixels, 1 or larger; published images are 178 wide and 218 high.
        max_memory_gb: as in ``LazyImages``; all images take 30 GB at 224 pixels, and with less they are decoded at each use.
    """

    root: str | Path
    target: str = "Wavy_Hair"
    attribute: str = "Male"
    image_size: int = 224
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"Expected `image_size` to be 1 or larger, but got {self.image_size}.")
        if self.target == self.attribute:
            raise ValueError(f"Expected `target` and `attribute` to be two labels, but both are {self.target!r}.")
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in torchvision's layout, three images of everybody, one of them of another class than the others."""
        per_group = 10 + int(20 if demand is None else demand.max())
        # Everybody's group; enough of them train.
        groups = np.repeat(np.arange(4), per_group)
        people = np.tile(np.arange(len(groups)), 3)
        y, a = np.divmod(groups[people], 2)
        y[2 * len(groups) :] ^= 1
        split = np.where(people % per_group < 5, 1 + people % 2, 0)
        names = [f"{number:06d}.jpg" for number in range(1, len(people) + 1)]
        for name, pixels in zip(names, noise("celeba", 2 * y + a, (self.image_size, self.image_size, 3)), strict=True):
            write_image(self.folder / IMAGES / name, pixels)
        codes = zip(names, 2 * y - 1, 2 * a - 1, strict=True)
        lines = [
            str(len(names)),
            f"{self.target} {self.attribute}",
            *(f"{name} {one:2d} {other:2d}" for name, one, other in codes),
        ]
        write_lines(self.folder / f"{LABELS}.txt", lines)
        for stem, column in ((SPLITS, split), (IDENTITIES, people + 1)):
            write_lines(self.folder / f"{stem}.txt", [f"{name} {value}" for name, value in zip(names, column, strict=True)])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the lists; see ``DatasetSource.load``."""
        folder = self.folder
        if not any((folder / f"{LABELS}{suffix}").exists() for suffix in (".txt", ".csv")):
            raise DatasetNotFoundError(
                f"Expected {LABELS}.txt of CelebA in {folder}, but it is not there: put the lists and the folder {IMAGES} "
                f"(1.4 GB), linked on {PAGE}, there, name the folder with dataset.root=DIR, point FEDFACET_DATA at a folder "
                "that holds celeba/, or run `experiment=adult_gsc dataset.download=true` instead, which fetches 6 MB."
            )
        names, y, a = self._labels()
        split = self._column(SPLITS, names, ("0", "1", "2"))
        columns = {}
        if (folder / f"{IDENTITIES}.txt").exists():
            columns["identity"] = self._column(IDENTITIES, names)
        present = {path.name for path in (folder / IMAGES).iterdir()} if (folder / IMAGES).is_dir() else set()
        if missing := [name for name in names if name not in present]:
            raise DatasetNotFoundError(
                f"Expected CelebA's {len(names)} images in {folder / IMAGES}, but {len(missing)} are missing, the first of "
                f"them {visible(missing[0])}: unpack {IMAGES}.zip, linked on {PAGE}, in {folder}."
            )
        images = ImageFiles(
            [folder / IMAGES / name for name in names],
            self.image_size,
            remedy=f"restore the file from {IMAGES}.zip",
            max_memory_gb=self.max_memory_gb,
        )
        train, val, test = (np.flatnonzero(split == number) for number in range(3))
        classes, values = ((f"not {label}", label) for label in (self.target, self.attribute))
        return Dataset(*(images, y, a, train, test, val, classes, values, IMAGENET_MEAN, IMAGENET_STD), columns=columns)

    def _labels(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return the names of all images, in the list's order, their classes and their attribute values."""
        path, rows = self._rows(LABELS)
        header = rows[0][1:] if path.suffix == ".csv" else rows[1]
        if wrong := [label for label in (self.target, self.attribute) if label not in header]:
            raise ConfigError(
                f"Expected `dataset.target` and `dataset.attribute` to be labels of {path}, but {wrong[0]!r} is none: choose "
                f"among {', '.join(header)}."
            )
        rows = rows[1 if path.suffix == ".csv" else 2 :]
        names = [row[0] for row in rows]
        faulty = next(
            (row for row in rows if len(row) != len(header) + 1 or not row[0].endswith(".jpg") or "/" in row[0]), None
        )
        if faulty is not None or not names or len(set(names)) < len(names):
            came = "a name twice, or none" if faulty is None else repr(" ".join(faulty)[:40])
            raise DatasetCorruptError(
                f"Expected every line of {path} to have the name of an image, each once, and {len(header)} labels, but got "
                f"{came}: restore it from {PAGE}."
            )
        y, a = (
            self._coded(path, [row[1 + header.index(label)] for row in rows], _CODES) for label in (self.target, self.attribute)
        )
        return names, y, a

    def _column(self, stem: str, names: Sequence[str], codes: Sequence[str] = ()) -> NDArray[np.int64]:
        """Return a list's numbers, for the ``names`` in their order; any whole numbers without ``codes``."""
        path, rows = self._rows(stem)
        rows = rows[1:] if path.suffix == ".csv" else rows
        known = dict(row for row in rows if len(row) == 2)
        if len(rows) != len(known) or known.keys() != set(names):
            raise DatasetCorruptError(
                f"Expected {path} to have the {len(names)} images of {LABELS}, each once with a number, but it has others or "
                f"faulty lines: restore it from {PAGE}."
            )
        entries = [known[name] for name in names]
        return self._coded(path, entries, {code: int(code) for code in codes} or _whole(entries))

    def _rows(self, stem: str) -> tuple[Path, list[list[str]]]:
        """Return a list's path and its lines, in words."""
        path = self.folder / f"{stem}.txt"
        if not path.exists() and path.with_suffix(".csv").exists():
            path = path.with_suffix(".csv")
        with reading(path, "a list of CelebA", f"restore it from {PAGE}"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            rows = [line.split("," if path.suffix == ".csv" else None) for line in lines if line.strip()]
            if len(rows) < 3:
                raise ValueError("it has hardly any lines")
        return path, rows

    def _coded(self, path: Path, entries: Sequence[str], codes: dict[str, int]) -> NDArray[np.int64]:
        if wrong := next((entry for entry in entries if entry not in codes), None):
            raise DatasetCorruptError(
                f"Expected {'whole numbers' if codes is not _CODES else '-1 or 1'} in {path}, but got {wrong[:40]!r}: restore "
                f"it from {PAGE}."
            )
        return np.array([codes[entry] for entry in entries], dtype=np.int64)


def _whole(entries: Sequence[str]) -> dict[str, int]:
    """Return the entries that are whole numbers, 0 or larger, and their values."""
    return {entry: int(entry) for entry in set(entries) if entry.isascii() and entry.isdigit() and len(entry) < 10}
