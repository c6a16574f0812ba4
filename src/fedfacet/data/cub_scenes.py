"""Photographs of birds set on scenes of CIFAR-100, with the scene as spurious attribute."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.data.cifar import CIFAR100
from fedfacet.data.cutouts import Pixels, blended, cut_out
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import noise, write_image, write_lines
from fedfacet.data.images import FORMATS, LazyImages, in_rgb, refuse_missing
from fedfacet.data.labels import hold_out
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.data.tables import read_table
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, InfeasiblePartitionError

BIRDS, SCENES = "cub200_2010_subset", "cifar100"
TABLE = "metadata.csv"
CLASSES, BACKGROUNDS = ("landbird", "waterbird"), ("land", "water")
HALF = (0.5,) * 3
"""Mean and deviation that the weights of ``model=efficientnet_lite0`` expect."""

_NAME = re.compile("[a-z_]+")  # they are names of files too
_TILE = 32
_REMEDY = f"restore the folder {BIRDS}"
Whole64 = NDArray[np.int64]


class _BirdsOnScenes(LazyImages):
    """Photograph ``birds[i]`` of ``paths`` on scene ``scenes[i]``; each bird is cut out once."""

    def __init__(self, paths: Sequence[Path], tiles: Pixels, birds: Whole64, scenes: Whole64, image_size: int) -> None:
        super().__init__(len(birds), image_size)
        self._paths, self._tiles, self._birds, self._scenes = tuple(paths), tiles, birds, scenes
        self._known: dict[int, tuple[Pixels, Pixels]] = {}

    def make(self, index: int) -> Pixels:
        """Set one bird on one scene."""
        bird = int(self._birds[index])
        if bird not in self._known:
            path = self._paths[bird]
            with reading(path, "a photograph", _REMEDY), Image.open(path, formats=FORMATS) as file:
                self._known[bird] = cut_out(in_rgb(file, str(path)), self.image_size)
        scene = Image.fromarray(self._tiles[self._scenes[index]])
        larger = scene.resize((self.image_size, self.image_size), Image.Resampling.BICUBIC)
        return blended(*self._known[bird], np.asarray(larger))


@dataclass(eq=False, kw_only=True)
class CubScenes(DatasetSource):
    """Birds of CUB-200 (2010) on scenes of CIFAR-100: y = landbird or waterbird, a = scene of land or water.

    It is made as WaterBirds is, of smaller data. The subset has 294 photographs of ten species, 88 of landbirds and 206 of
    waterbirds. The photographs have no segmentations, so ``subject_of`` cuts the birds out by colour. Some cut-outs keep a part
    of their surroundings, and some lose a part of the bird. Scenes have 32 pixels and are enlarged.

    Training, validation and test share neither photographs nor scenes. Photographs are split within each species; scenes that
    test are CIFAR-100's test images. Every photograph that validates or tests is set on one scene of land and on one of water.
    With the default fractions, each scene has 13 landbirds and 31 waterbirds in validation. In the test it has 26 and 63.

    A training group has as many images as the partition demands, or ``per_group``. It takes its photographs in turn, in an
    order drawn for each turn, and its scenes likewise. So one photograph is in several images, of several clients.

    Columns are ``species``, ``photograph`` and ``scene`` (the class of CIFAR-100, numbered as in ``land`` and then ``water``).

    Source: the construction is that of WaterBirds (Sagawa et al., ICLR 2020, arXiv:1911.08731). Photographs are those of
    Welinder et al., Caltech-UCSD Birds 200, CNS-TR-2010-001, and scenes those of Krizhevsky, 2009. For non-commercial research
    and education only.

    Deviation: other photographs, other scenes, and cut-outs by colour. A bird takes four fifths of its image.

    Args:
        root: folder that holds ``cub200_2010_subset`` (``metadata.csv`` and ``images``) and ``cifar100``, the latter as
            ``cifar-100-binary`` or as contact sheets ``train/CLASS.webp`` and ``test/CLASS.webp`` of 32 x 32 pixels a scene.
        land: classes of CIFAR-100 that are scenes of land.
        water: classes that are scenes of water.
        image_size: height and width in pixels, 8 or larger.
        per_group: training images of each group where the partition demands no numbers, 1 or larger.
        val_fraction: of each species' photographs that validate, in (0, 1).
        test_fraction: of each species' photographs that test, in (0, 1); with ``val_fraction`` less than 1.
        seed: of all draws; it does not follow the run's seed.
    """

    root: str
    land: Sequence[str] = ("forest",)
    water: Sequence[str] = ("sea",)
    image_size: Annotated[int, Whole(8)] = 96
    per_group: Annotated[int, Whole()] = 100
    val_fraction: Annotated[float, Within("(0, 1)")] = 0.15
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"`dataset.val_fraction` and `dataset.test_fraction` are {self.val_fraction} and {self.test_fraction}, which "
                "leaves no photographs to train on: lower one of them."
            )
        names = [*self.land, *self.water]
        if odd := [name for name in names if not _NAME.fullmatch(name)]:
            raise ConfigError(
                f"CIFAR-100 has no class {odd[0]!r}: name others in `dataset.land` and `dataset.water`, such as plain or sea."
            )
        if not self.land or not self.water or len(set(names)) < len(names):
            raise ConfigError(
                f"`dataset.land` and `dataset.water` are {list(self.land)} and {list(self.water)}: name one or more classes of "
                "CIFAR-100 in each, none twice."
            )
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in both layouts, four species of ten photographs; see ``DatasetSource.generate``."""
        species = np.repeat(np.arange(1, 5), 10)
        names = [f"{number:03d}.Bird/{place:04d}.jpg" for place, number in enumerate(species)]
        for name, pixels in zip(names, noise("cub", species, (60, 80, 3)), strict=True):
            write_image(self.folder / BIRDS / "images" / name, pixels)
        rows = [
            f"{place},{name},{number % 2},{number}" for place, (name, number) in enumerate(zip(names, species, strict=True))
        ]
        write_lines(self.folder / BIRDS / TABLE, ["img_id,img_filename,y,species", *rows])
        for split, height in (("train", 3), ("test", 1)):
            for label, scene in enumerate((*self.land, *self.water)):
                pixels = noise(f"scenes-{split}", np.array([label]), (height * _TILE, 20 * _TILE, 3))[0]
                write_image(self.folder / SCENES / split / f"{scene}.webp", pixels)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read both, split them, and set birds on scenes; see ``DatasetSource.load``."""
        if demand is not None and demand.shape != (2, 2):
            raise InfeasiblePartitionError(
                f"The partition asks for {demand.shape[0]} classes and {demand.shape[1]} attribute values, but birds on scenes "
                "have 2 and 2: choose another partition or dataset."
            )
        paths, y, species = self._photographs()
        tiles, kinds, tested = self._scenes()
        left, test = hold_out(species, None, self.test_fraction, self.seed, "cub-test")
        share = self.val_fraction / (1 - self.test_fraction)
        train, val = (left[part] for part in hold_out(species[left], None, share, self.seed, "cub-validation"))
        for part, members in (("train", train), ("validate", val), ("test", test)):
            if len(set(y[members])) < 2:
                raise DatasetCorruptError(
                    f"No photograph of one class is left to {part} in {self.folder / BIRDS}: restore the folder, or change "
                    "`dataset.val_fraction` and `dataset.test_fraction`."
                )
        of_train, of_val = hold_out(kinds[~tested], None, 0.2, self.seed, "scenes-validation")
        numbers = np.full((2, 2), self.per_group) if demand is None else demand
        sizes = [[np.bincount(y[part], minlength=2)] * 2 for part in (val, test)]
        parts = [(train, of_train, numbers)]
        scenes = (of_val, np.flatnonzero(tested))
        parts += [(p, s, np.stack(n, axis=1)) for p, s, n in zip((val, test), scenes, sizes, strict=True)]
        places = len(self.land)
        pairs, splits, start = [], [], 0
        for name, (members, own, wanted) in zip(("train", "val", "test"), parts, strict=True):
            by_kind = [own[kinds[own] < places], own[kinds[own] >= places]]
            drawn = _paired(self.seed, name, [members[y[members] == label] for label in range(2)], by_kind, wanted)
            splits.append(np.arange(start, start := start + len(drawn)))
            pairs.append(drawn)
        birds, scene = np.concatenate(pairs).T
        return Dataset(
            _BirdsOnScenes(paths, tiles, birds, scene, self.image_size),
            y[birds],
            (kinds[scene] >= places).astype(np.int64),
            splits[0],
            splits[2],
            splits[1],
            CLASSES,
            BACKGROUNDS,
            mean=HALF,
            std=HALF,
            columns={"species": species[birds], "photograph": birds, "scene": kinds[scene]},
        )

    def _photographs(self) -> tuple[list[Path], Whole64, Whole64]:
        """Return files, classes and species."""
        path = self.folder / BIRDS / TABLE
        if not path.is_file():
            raise DatasetNotFoundError(_absent(path))
        wanted = ("img_filename", "y", "species")
        table = read_table(path, wanted, expected="the table of the photographs", remedy=_REMEDY)
        files = [path.parent / "images" / name for name in table.columns["img_filename"]]
        outside = [file for file in files if ".." in file.parts or not file.is_relative_to(path.parent)]
        if outside or len(set(files)) < len(files):
            raise DatasetCorruptError(f"{path} names a photograph twice or outside its folder: {_REMEDY}.")
        refuse_missing([file for file in files if not file.is_file()], f"{len(files)} photographs beside {path}", _REMEDY)
        return files, table.codes("y", "01"), table.whole("species", 1, 200)

    def _scenes(self) -> tuple[Pixels, Whole64, NDArray[np.bool_]]:
        """Return all scenes, shape (N, 32, 32, 3), the number of each one's class, and which are test images."""
        names, folder = (*self.land, *self.water), self.folder / SCENES
        if (folder / CIFAR100.FOLDER).is_dir():
            found = _of_binary(folder, names)
        elif folder.is_dir():
            found = {split: [_of_sheet(folder / split / f"{name}.webp") for name in names] for split in ("train", "test")}
        else:
            raise DatasetNotFoundError(_absent(folder))
        tiles = [part for split in ("train", "test") for part in found[split]]
        sizes = [len(part) for part in tiles]
        kinds = np.repeat(np.tile(np.arange(len(names)), 2), sizes)
        return np.concatenate(tiles), kinds, np.repeat(np.repeat([False, True], len(names)), sizes)


def _absent(path: Path) -> str:
    return (
        f"Birds and scenes need {path}, which is not there: point FEDFACET_DATA (or dataset.root) at a folder that holds "
        f"{BIRDS} and {SCENES}, or use `experiment=spawrious_gsc_synthetic`, which needs no download."
    )


def _of_binary(folder: Path, names: Sequence[str]) -> Mapping[str, list[Pixels]]:
    cifar = CIFAR100(root=str(folder), augment=False).load()
    if unknown := [name for name in names if name not in cifar.class_names]:
        raise ConfigError(
            f"CIFAR-100 has no class {unknown[0]!r}: name others in `dataset.land` and `dataset.water`, such as plain or sea."
        )
    assert cifar.val is not None
    found: dict[str, list[Pixels]] = {}
    for split, own in (("train", np.sort(np.concatenate([cifar.train, cifar.val]))), ("test", cifar.test)):
        labels = cifar.y[own]
        members = [own[labels == cifar.class_names.index(name)] for name in names]
        found[split] = [cifar.inputs.fetch(part).permute(0, 2, 3, 1).numpy() for part in members]
    return found


def _of_sheet(path: Path) -> Pixels:
    """Return the scenes of a contact sheet, row by row."""
    if not path.is_file():
        raise DatasetNotFoundError(
            f"There is no contact sheet {path}: name classes of CIFAR-100 in `dataset.land` and `dataset.water`, or restore it."
        )
    with reading(path, f"a contact sheet of {_TILE} x {_TILE} pixels a scene", "restore the file"):
        with Image.open(path, formats=("WEBP",)) as file:
            sheet = np.asarray(file.convert("RGB"))
        high, wide = (side // _TILE for side in sheet.shape[:2])
        tiles = sheet.reshape(high, _TILE, wide, _TILE, 3).swapaxes(1, 2)
    return tiles.reshape(-1, _TILE, _TILE, 3)


def _paired(seed: int, part: str, birds: Sequence[Whole64], scenes: Sequence[Whole64], wanted: NDArray[Any]) -> Whole64:
    """Return photographs and scenes of ``wanted`` (2, 2) images a group, shape (N, 2)."""
    pairs = []
    for a, own in enumerate(scenes):
        order, used = _turns(rng.stream(seed, f"scenes-{part}", a), own, int(wanted[:, a].sum())), 0
        for label, members in enumerate(birds):
            count = int(wanted[label, a])
            chosen = _turns(rng.stream(seed, f"photographs-{part}", label, a), members, count)
            pairs.append(np.stack([chosen, order[used : used + count]], axis=1))
            used += count
    return np.concatenate(pairs)


def _turns(draw: np.random.Generator, members: Whole64, count: int) -> Whole64:
    """Return ``count`` of some members, each once before any comes again."""
    turns = [draw.permutation(members) for _ in range(-(-count // len(members)))]
    return np.concatenate([np.empty(0, dtype=np.int64), *turns])[:count]
