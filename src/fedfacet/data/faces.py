"""Photographs of faces, with labels of what is spurious about them: CelebA, UTKFace and FairFace."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Within
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import visible
from fedfacet.data.generated import enough, write_lines
from fedfacet.data.images import ImageSource, refuse_missing
from fedfacet.data.labels import hold_out
from fedfacet.data.reading import reading
from fedfacet.data.tables import group_counts, read_table
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError

log = logging.getLogger(__name__)

CELEBA = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
_IMAGES = "img_align_celeba"
_LABELS, _SPLITS, _IDENTITIES = "list_attr_celeba", "list_eval_partition", "identity_CelebA"
_CODES = {"-1": 0, "1": 1}

UTKFACE = "https://susanqq.github.io/UTKFace/"
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d{1,20}\.jpg(\.chip\.jpg)?")
_OLDEST = 116

FAIRFACE = "https://github.com/joojs/fairface"
RACES = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
"""FairFace's."""

_PARTS = ("train", "val")
_VALUES = ("white", "non-white")


@dataclass(eq=False)
class CelebA(ImageSource):
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

    _: KW_ONLY
    target: str = "Wavy_Hair"
    attribute: str = "Male"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == self.attribute:
            raise ValueError(f"Expected `target` and `attribute` to be two labels, but both are {self.target!r}.")

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
        self.write_noise("celeba", 2 * y + a, [f"{_IMAGES}/{name}" for name in names])
        codes = [f"{one:2d} {other:2d}" for one, other in zip(2 * y - 1, 2 * a - 1, strict=True)]
        heads = {_LABELS: [str(len(names)), f"{self.target} {self.attribute}"]}
        for stem, column in ((_LABELS, codes), (_SPLITS, split), (_IDENTITIES, people + 1)):
            rows = [f"{name} {value}" for name, value in zip(names, column, strict=True)]
            write_lines(self.folder / f"{stem}.txt", [*heads.get(stem, ()), *rows])

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the lists; see ``DatasetSource.load``."""
        folder = self.folder
        if not any((folder / f"{_LABELS}{suffix}").exists() for suffix in (".txt", ".csv")):
            raise DatasetNotFoundError(
                f"Expected {_LABELS}.txt of CelebA in {folder}, but it is not there: put the lists and the folder {_IMAGES} "
                f"(1.4 GB), linked on {CELEBA}, there, name the folder with dataset.root=DIR, point FEDFACET_DATA at a folder "
                "that holds celeba/, or run `experiment=adult_gsc dataset.download=true` instead, which fetches 6 MB."
            )
        names, y, a = self._labels()
        split = self._column(_SPLITS, names, ("0", "1", "2"))
        known = (folder / f"{_IDENTITIES}.txt").exists()
        present = {path.name for path in (folder / _IMAGES).iterdir()} if (folder / _IMAGES).is_dir() else set()
        refuse_missing(
            [name for name in names if name not in present],
            f"CelebA's {len(names)} images in {folder / _IMAGES}",
            f"unpack {_IMAGES}.zip, linked on {CELEBA}, in {folder}",
        )
        return self.dataset(
            [folder / _IMAGES / name for name in names],
            y,
            a,
            *(np.flatnonzero(split == number) for number in (0, 2, 1)),
            class_names=(f"not {self.target}", self.target),
            attribute_names=(f"not {self.attribute}", self.attribute),
            remedy=f"restore the file from {_IMAGES}.zip",
            check=False,
            columns={"identity": self._column(_IDENTITIES, names)} if known else {},
        )

    def _labels(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return the names of all images, in the list's order, their classes and their attribute values."""
        path, rows = self._rows(_LABELS)
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
                f"{came}: restore it from {CELEBA}."
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
                f"Expected {path} to have the {len(names)} images of {_LABELS}, each once with a number, but it has others or "
                f"faulty lines: restore it from {CELEBA}."
            )
        entries = [known[name] for name in names]
        return self._coded(path, entries, {code: int(code) for code in codes} or _whole(entries))

    def _rows(self, stem: str) -> tuple[Path, list[list[str]]]:
        """Return a list's path and its lines, in words."""
        path = self.folder / f"{stem}.txt"
        if not path.exists() and path.with_suffix(".csv").exists():
            path = path.with_suffix(".csv")
        with reading(path, "a list of CelebA", f"restore it from {CELEBA}"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            rows = [line.split("," if path.suffix == ".csv" else None) for line in lines if line.strip()]
            if len(rows) < 3:
                raise ValueError("it has hardly any lines")
        return path, rows

    def _coded(self, path: Path, entries: Sequence[str], codes: dict[str, int]) -> NDArray[np.int64]:
        if wrong := next((entry for entry in entries if entry not in codes), None):
            raise DatasetCorruptError(
                f"Expected {'whole numbers' if codes is not _CODES else '-1 or 1'} in {path}, but got {wrong[:40]!r}: restore "
                f"it from {CELEBA}."
            )
        return np.array([codes[entry] for entry in entries], dtype=np.int64)


def _whole(entries: Sequence[str]) -> dict[str, int]:
    """Return the entries that are whole numbers, 0 or larger, and their values."""
    return {entry: int(entry) for entry in set(entries) if entry.isascii() and entry.isdigit() and len(entry) < 10}


@dataclass(eq=False)
class UTKFace(ImageSource):
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

    _: KW_ONLY
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.2
    seed: int = 0

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise under names of the real kind; see ``DatasetSource.generate``."""
        groups = np.repeat(np.arange(4), enough(demand, self.test_fraction)[2])
        draw = rng.stream(0, "generated-utkface")
        names = []
        for number, (gender, attribute) in enumerate(zip(*np.divmod(groups, 2), strict=True)):
            race = int(draw.integers(1, 5)) if attribute else 0
            names.append(f"{draw.integers(1, 100)}_{gender}_{race}_201701{number:011d}.jpg.chip.jpg")
        self.write_noise("utkface", groups, names)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the names and check the images; see ``DatasetSource.load``."""
        folder = self.folder
        if not folder.is_dir():
            raise DatasetNotFoundError(
                f"Expected the images of UTKFace in {folder}, but there is no such folder: unpack UTKFace.tar.gz, aligned and "
                f"cropped, of {UTKFACE} (0.1 GB) there, name the folder that holds the images with dataset.root=DIR, point "
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
        sizes = group_counts((2, 2), gender, a)
        if np.min(sizes) < 2:
            raise DatasetCorruptError(
                f"Expected two or more images of every gender, white and non-white, in {folder}, under names such as "
                f"26_1_0_20170116174525125.jpg.chip.jpg, but got {sizes}: unpack UTKFace.tar.gz anew."
            )
        train, test = hold_out(gender, a, self.test_fraction, self.seed, "utkface-test")
        return self.dataset(
            [folder / name for name in parsed],
            gender,
            a,
            train,
            test,
            class_names=("male", "female"),
            attribute_names=_VALUES,
            remedy="restore the file from UTKFace.tar.gz",
            columns={"race": race, "age": age},
        )


@dataclass(eq=False)
class FairFace(ImageSource):
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

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in the published layout; see ``DatasetSource.generate``."""
        in_training = 20 + int(20 if demand is None else 1.5 * demand.max())
        draw = rng.stream(0, "generated-fairface")
        for part, per_group in zip(_PARTS, (in_training, 10), strict=True):
            groups = np.repeat(np.arange(4), per_group)
            files = [f"{part}/{number}.jpg" for number in range(1, len(groups) + 1)]
            self.write_noise(f"fairface-{part}", groups, files)
            lines = ["file,age,gender,race,service_test"]
            for file, gender, attribute in zip(files, *np.divmod(groups, 2), strict=True):
                race = RACES[int(draw.integers(1, len(RACES))) if attribute else 0]
                lines.append(f"{file},20-29,{('Male', 'Female')[gender]},{race},True")
            write_lines(self.folder / f"fairface_label_{part}.csv", lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read both tables and check the images; see ``DatasetSource.load``."""
        names, gender, race = zip(*map(self._part, _PARTS), strict=True)
        paths = [self.folder / name for part in names for name in part]
        refuse_missing(
            [path for path in paths if not path.is_file()],
            f"FairFace's {len(paths)} images beside the tables in {self.folder}",
            f"unpack the images with a padding of 0.25, linked on {FAIRFACE}, in {self.folder}",
        )
        races = np.concatenate(race)
        return self.dataset(
            paths,
            np.concatenate(gender),
            (races > 0).astype(np.int64),
            *np.split(np.arange(len(paths)), [len(names[0])]),
            class_names=("Male", "Female"),
            attribute_names=_VALUES,
            remedy=f"restore the file from {FAIRFACE}",
            columns={"race": races},
        )

    def _part(self, part: str) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return the names of a part's images, their genders and their races."""
        path = self.folder / f"fairface_label_{part}.csv"
        if not path.exists():
            raise DatasetNotFoundError(
                f"Expected {path.name} of FairFace in {self.folder}, but it is not there: put both tables and the images with "
                f"a padding of 0.25 (0.6 GB), linked on {FAIRFACE}, there, name the folder with dataset.root=DIR, point "
                "FEDFACET_DATA at a folder that holds fairface/, or run `experiment=adult_gsc dataset.download=true` instead, "
                "which fetches 6 MB."
            )
        remedy = f"restore it from {FAIRFACE}"
        table = read_table(path, ("file", "gender", "race"), expected="a table of FairFace", remedy=remedy)
        names = table.columns["file"]
        twice = (name for name, times in Counter(names).items() if times > 1)
        strange = (name for name in names if not re.fullmatch(rf"{part}/[^/]*\.jpg", name))
        if wrong := next(chain(strange, twice), None):
            raise DatasetCorruptError(
                f"Expected every line of {path} to name an image such as {part}/1.jpg, each once, but got {wrong[:40]!r}: "
                f"{remedy}."
            )
        return names, table.codes("gender", ("Male", "Female")), table.codes("race", RACES)
